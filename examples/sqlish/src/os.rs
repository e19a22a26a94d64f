//! What each operating system does in its own way: how a server is told to stop, and its limits.

#[cfg(unix)]
pub(crate) use unix::{raise_file_limit, stop_signal};
#[cfg(windows)]
pub(crate) use windows::{raise_file_limit, stop_signal};

#[cfg(unix)]
mod unix {
    use std::io;
    use std::process;
    use std::sync::mpsc;
    use std::thread;

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;

    /// Hears of the first SIGTERM or SIGINT. A second one ends the process at once.
    pub(crate) fn stop_signal() -> io::Result<mpsc::Receiver<()>> {
        let (first, stop) = mpsc::channel();
        let mut signals = Signals::new([SIGTERM, SIGINT])?;
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                let mut signals = signals.forever();
                if signals.next().is_some() {
                    // The receiver is gone only if the server is ending anyway.
                    let _ = first.send(());
                }
                if let Some(signal) = signals.next() {
                    process::exit(128 + signal);
                }
            })?;
        Ok(stop)
    }

    /// Allows as many open files as the hard limit lets us: a connection is one, and the soft limit of
    /// 1,024 that many systems start with is for programs that use `select`.
    pub(crate) fn raise_file_limit() {
        let limit = getrlimit(Resource::Nofile);
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            eprintln!("sqlish serve: the limit of open files stays as it is: {error}");
        }
    }
}

#[cfg(windows)]
mod windows {
    use std::io;
    use std::process;
    use std::sync::mpsc;

    /// What a process ends with that a console event has ended.
    const CONTROL_C_EXIT: i32 = 0xC000_013A_u32.cast_signed();

    /// Hears of the first Ctrl-C or Ctrl-Break at the console. A second one ends the process at once.
    pub(crate) fn stop_signal() -> io::Result<mpsc::Receiver<()>> {
        let (first, stop) = mpsc::channel();
        let mut first = Some(first);
        ctrlc::set_handler(move || match first.take() {
            // The receiver is gone only if the server is ending anyway.
            Some(first) => _ = first.send(()),
            None => process::exit(CONTROL_C_EXIT),
        })
        .map_err(io::Error::other)?;
        Ok(stop)
    }

    /// A process may have 16 million handles, and nobody lowers that.
    pub(crate) fn raise_file_limit() {}
}

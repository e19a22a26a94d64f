//! Which CPUs there are, which of them are one core, and who gets which.

use std::fs;

use crate::error::{Error, Result};
pub use crate::os::CPUS_MAX;
use crate::os::{allowed_cpus, run_on};
use crate::plan::{parse_cpus, show_cpus};

/// The CPUs this process may run on, ascending.
pub fn allowed() -> Result<Vec<usize>> {
    allowed_cpus().map_err(|error| Error::run(format!("cannot read the CPU affinity: {error}")))
}

/// Binds the calling thread (on Windows the process), and every thread and process that it starts from
/// now on, to `cpus`.
pub fn pin(cpus: &[usize]) -> Result<()> {
    if let Some(cpu) = cpus.iter().find(|cpu| **cpu >= CPUS_MAX) {
        return Err(Error::usage(format!("there is no CPU {cpu}")));
    }
    run_on(cpus)
        .map_err(|error| Error::usage(format!("cannot run on CPUs {}: {error}", show_cpus(cpus))))
}

/// Who runs where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// The server's CPUs; a pool gets a group for each.
    pub server: Vec<usize>,
    /// The load generator's.
    pub client: Vec<usize>,
}

impl Split {
    /// The CPUs of both, each once.
    pub fn all(&self) -> Vec<usize> {
        let mut all = [self.server.as_slice(), &self.client].concat();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Divides `cpus`: a quarter for the client, at least one, the rest for the server, as in the
/// published runs. `core_of` gives the core that a CPU is a thread of; a core is not divided unless
/// there is only one, since two hyperthreads of one core slow each other down. One CPU alone serves
/// both.
pub fn split(cpus: &[usize], core_of: impl Fn(usize) -> usize) -> Split {
    let quarter = (cpus.len() / 4).max(1);
    let mut cores: Vec<usize> = cpus.iter().map(|cpu| core_of(*cpu)).collect();
    cores.sort_unstable();
    cores.dedup();
    // From the top: CPU 0 is where most machines handle their interrupts, a cost that a server has
    // anyway.
    let mut client = Vec::new();
    while client.len() < quarter && cores.len() > 1 {
        let core = cores.pop();
        client.extend(
            cpus.iter()
                .copied()
                .filter(|cpu| Some(core_of(*cpu)) == core),
        );
    }
    if client.is_empty() {
        client.extend(
            cpus.iter()
                .skip(1)
                .copied()
                .last()
                .or(cpus.first().copied()),
        );
    }
    let mut server: Vec<usize> = cpus
        .iter()
        .copied()
        .filter(|cpu| !client.contains(cpu))
        .collect();
    if server.is_empty() {
        server.clone_from(&client);
    }
    client.sort_unstable();
    Split { server, client }
}

/// The number of the core that `cpu` is a thread of: its first hyperthread. `cpu` itself where the
/// kernel does not say.
pub fn core_of(cpu: usize) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    fs::read_to_string(path)
        .ok()
        .and_then(|list| parse_cpus(list.trim()).ok())
        .and_then(|siblings| siblings.first().copied())
        .unwrap_or(cpu)
}

/// A pair of CPUs, one of the server's and one of the client's, that are the same core.
pub fn shared_core(split: &Split, core_of: impl Fn(usize) -> usize) -> Option<(usize, usize)> {
    let pairs = split
        .server
        .iter()
        .flat_map(|s| split.client.iter().map(move |c| (*s, *c)));
    pairs.into_iter().find(|(s, c)| core_of(*s) == core_of(*c))
}

/// Refuses CPUs that are not among `allowed`.
pub fn check(cpus: &[usize], allowed: &[usize]) -> Result<()> {
    match cpus.iter().find(|cpu| !allowed.contains(cpu)) {
        Some(cpu) => Err(Error::usage(format!(
            "CPU {cpu} is not among those usable here: {}",
            show_cpus(allowed)
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(split: Split) -> (Vec<usize>, Vec<usize>) {
        (split.server, split.client)
    }

    #[test]
    fn the_client_gets_a_quarter_and_at_least_one() {
        let own_core = |cpu| cpu;
        assert_eq!(parts(split(&[0, 1], own_core)), (vec![0], vec![1]));
        assert_eq!(
            parts(split(&[0, 1, 2, 3], own_core)),
            (vec![0, 1, 2], vec![3])
        );
        assert_eq!(
            parts(split(&[0, 1, 2, 3, 4, 5, 6, 7], own_core)),
            ((0..6).collect(), vec![6, 7])
        );
    }

    #[test]
    fn a_core_is_not_divided_between_server_and_client() {
        // Eight threads of four cores, numbered as most machines do: 0 and 4 are one core.
        let cpus: Vec<_> = (0..8).collect();
        let split = split(&cpus, |cpu| cpu % 4);
        assert_eq!(shared_core(&split, |cpu| cpu % 4), None);
        assert_eq!(parts(split), (vec![0, 1, 2, 4, 5, 6], vec![3, 7]));
    }

    #[test]
    fn where_there_is_one_core_its_threads_are_divided_and_it_is_noticed() {
        let split = split(&[0, 1], |_| 0);
        assert_eq!(shared_core(&split, |_| 0), Some((0, 1)));
        assert_eq!(parts(split), (vec![0], vec![1]));
    }

    #[test]
    fn one_cpu_serves_both_and_it_is_noticed() {
        let split = split(&[3], |cpu| cpu);
        assert_eq!(shared_core(&split, |cpu| cpu), Some((3, 3)));
        assert_eq!(parts(split), (vec![3], vec![3]));
    }

    #[test]
    fn a_cpu_that_is_not_there_is_named() {
        assert_eq!(check(&[0, 1], &[0, 1, 2]), Ok(()));
        let error = check(&[0, 64], &[0, 1]).unwrap_err();
        assert_eq!(
            (error.exit_code(), error.to_string().contains("CPU 64")),
            (2, true)
        );
    }
}

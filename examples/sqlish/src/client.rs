//! `sqlish client`: statements from standard input, replies to standard output.

use std::error::Error;
use std::fmt;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::net::TcpStream;
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use crate::cli::{ClientOptions, ServerAddress};
use crate::login;
use crate::parse::trim;

/// Runs the client. 0 if every statement succeeded, 1 if one got `ERR`.
///
/// # Errors
/// If there is no server, or it goes away before the last reply.
pub(crate) fn run(options: ClientOptions) -> Result<ExitCode, Box<dyn Error>> {
    let mut server = Server::connect(&options.server)?;
    if let Some(user) = &options.user {
        server.log_in(user, options.secret.as_deref())?;
    }
    let (input, output) = (io::stdin().lock(), io::stdout().lock());
    let prompt = if input.is_terminal() && output.is_terminal() {
        eprintln!(
            "connected to {}; QUIT or Ctrl-D ends",
            server.name.trim_end()
        );
        "sqlish> "
    } else {
        ""
    };
    match talk(&mut server, input, output, prompt)? {
        Verdict::AllOk => Ok(ExitCode::SUCCESS),
        Verdict::SomeFailed => Ok(ExitCode::from(1)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    AllOk,
    SomeFailed,
}

/// One statement at a time, until the input ends or a `QUIT` has been answered.
fn talk(
    server: &mut Server,
    mut input: impl BufRead,
    mut output: impl Write,
    prompt: &str,
) -> Result<Verdict, Box<dyn Error>> {
    let mut verdict = Verdict::AllOk;
    let (mut statement, mut line) = (Vec::new(), Vec::new());
    loop {
        output.write_all(prompt.as_bytes())?;
        output.flush()?;
        statement.clear();
        if input.read_until(b'\n', &mut statement)? == 0 {
            return Ok(verdict);
        }
        // It has no reply, so waiting for one would be for ever.
        if statement.trim_ascii().is_empty() {
            continue;
        }
        let quits = trim(&statement).eq_ignore_ascii_case(b"QUIT");
        if !statement.ends_with(b"\n") {
            statement.push(b'\n');
        }
        server.send(&statement)?;
        loop {
            server.receive(&mut line)?;
            output.write_all(&line)?;
            match kind(&line) {
                Kind::Row => {}
                Kind::Ok => break,
                Kind::Err => {
                    verdict = Verdict::SomeFailed;
                    break;
                }
            }
        }
        output.flush()?;
        if quits {
            return Ok(verdict);
        }
    }
}

enum Kind {
    Row,
    Ok,
    Err,
}

/// What a line of a reply is, by its first word.
fn kind(line: &[u8]) -> Kind {
    match line.split(|byte| byte.is_ascii_whitespace()).next() {
        Some(b"OK") => Kind::Ok,
        Some(b"ERR") => Kind::Err,
        _ => Kind::Row,
    }
}

/// The other end.
struct Server {
    /// How it greeted.
    name: String,
    input: BufReader<Box<dyn Read>>,
    output: Box<dyn Write>,
}

impl Server {
    fn connect(address: &ServerAddress) -> Result<Self, Box<dyn Error>> {
        let (name, connected) = match (&address.tcp, &address.unix) {
            (Some(tcp), _) => (format!("tcp {tcp}"), connect_tcp(tcp)),
            (None, Some(unix)) => (format!("unix {}", unix.display()), connect_unix(unix)),
            (None, None) => return Err("--tcp or --unix is needed".into()),
        };
        let (input, output) =
            connected.map_err(|error| format!("cannot connect to {name}: {error}"))?;
        let mut server = Self {
            name,
            input: BufReader::new(input),
            output,
        };
        let mut line = Vec::new();
        server.receive(&mut line)?;
        let greeting = String::from_utf8_lossy(&line).into_owned();
        if !greeting.starts_with("READY\t") {
            return Err(format!("{} refused: {}", server.name, greeting.trim_end()).into());
        }
        server.name = greeting;
        Ok(server)
    }

    fn log_in(&mut self, user: &str, secret: Option<&str>) -> Result<(), Box<dyn Error>> {
        let mut line = Vec::new();
        self.send(format!("LOGIN {user}\n").as_bytes())?;
        self.receive(&mut line)?;
        if let Some(nonce) = line.strip_prefix(b"ROW\tchallenge\t") {
            let secret = secret.ok_or("the server requires a login: give --secret")?;
            let nonce = String::from_utf8_lossy(nonce.trim_ascii_end()).into_owned();
            self.receive(&mut line)?; // the OK behind the challenge
            self.send(format!("ANSWER {}\n", login::answer(&nonce, secret)).as_bytes())?;
            self.receive(&mut line)?;
        }
        match kind(&line) {
            Kind::Ok => Ok(()),
            Kind::Row | Kind::Err => Err(format!(
                "login failed: {}",
                String::from_utf8_lossy(&line).trim_end()
            )
            .into()),
        }
    }

    fn send(&mut self, statement: &[u8]) -> Result<(), Lost> {
        self.output.write_all(statement).map_err(Lost::Failed)
    }

    /// Reads one line, its newline included.
    fn receive(&mut self, line: &mut Vec<u8>) -> Result<(), Lost> {
        line.clear();
        self.input.read_until(b'\n', line).map_err(Lost::Failed)?;
        if line.ends_with(b"\n") {
            Ok(())
        } else {
            Err(Lost::Closed)
        }
    }
}

type Halves = (Box<dyn Read>, Box<dyn Write>);

fn connect_tcp(address: &str) -> io::Result<Halves> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    Ok((Box::new(stream.try_clone()?), Box::new(stream)))
}

#[cfg(unix)]
fn connect_unix(path: &std::path::Path) -> io::Result<Halves> {
    let stream = UnixStream::connect(path)?;
    Ok((Box::new(stream.try_clone()?), Box::new(stream)))
}

#[cfg(not(unix))]
fn connect_unix(_: &std::path::Path) -> io::Result<Halves> {
    let message = "there are no Unix sockets here";
    Err(io::Error::new(io::ErrorKind::Unsupported, message))
}

/// Why a conversation ended before its last reply.
#[derive(Debug)]
enum Lost {
    Closed,
    Failed(io::Error),
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the server closed the connection"),
            Self::Failed(error) => write!(f, "the connection is lost: {error}"),
        }
    }
}

impl Error for Lost {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that has already said all it will say.
    fn server(replies: &'static str) -> Server {
        Server {
            name: String::new(),
            input: BufReader::new(Box::new(replies.as_bytes())),
            output: Box::new(io::sink()),
        }
    }

    fn talked(replies: &'static str, statements: &str) -> (Option<Verdict>, String) {
        let mut output = Vec::new();
        let verdict = talk(&mut server(replies), statements.as_bytes(), &mut output, "");
        (verdict.ok(), String::from_utf8_lossy(&output).into_owned())
    }

    #[test]
    fn replies_are_printed_as_they_came_and_an_err_is_remembered() {
        let replies = "ROW\ta\\tb\nROW\tc\nOK\nERR\t1065\tno\nOK\t1\n";
        let (verdict, output) = talked(replies, "ECHO x\n\n;\nUPDATE\n");
        assert_eq!(
            (verdict, output.as_str()),
            (Some(Verdict::SomeFailed), replies)
        );
        assert_eq!(
            talked("OK\n", "PING"),
            (Some(Verdict::AllOk), "OK\n".to_owned())
        );
    }

    #[test]
    fn quit_ends_the_conversation_and_a_server_that_leaves_is_an_error() {
        assert_eq!(talked("OK\n", "quit;\nPING\n").0, Some(Verdict::AllOk));
        assert_eq!(talked("OK\n", "PING\nPING\n").0, None);
        assert_eq!(talked("ROW\tcut", "PING\n").0, None);
    }
}

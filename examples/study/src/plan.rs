//! The words of a plan: what is sent, to which scheduler, over which socket, by how many clients,
//! on which CPUs.
//!
//! A new workload or scheduler is one more variant here and one more entry in its `ALL`; the
//! compiler then names the places that have to know about it.

use std::str::FromStr;

use crate::error::{Error, Result};

/// What each client sends, over and over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Workload {
    /// `PING`: no engine, only the scheduler and two system calls.
    Ping,
    /// One row by primary key.
    PointSelect,
    /// One row by primary key gets a new `c`, which no index covers.
    UpdateNokey,
    /// A transaction that reads: ten rows by primary key and four ranges of a hundred.
    OltpRo,
    /// The same, with two updates, a delete and an insert.
    OltpRw,
    /// A transaction of three statements that updates the one row that everybody updates.
    Convoy,
    /// Transactions of four kinds, by weight: what a business does all day.
    Mixed,
    /// A block of a file is written; of `study disk` alone, whose servers know nothing else.
    Disk,
}

/// The kinds of transaction of [`Workload::Mixed`], with how many of a hundred are of each.
pub const KINDS: [(&str, u64); 4] = [
    ("catalogue", 60),
    ("register", 25),
    ("temporary", 10),
    ("report", 5),
];

impl Workload {
    /// In the order of a table; those of a database.
    pub const ALL: [Workload; 7] = [
        Workload::Ping,
        Workload::PointSelect,
        Workload::UpdateNokey,
        Workload::OltpRo,
        Workload::OltpRw,
        Workload::Convoy,
        Workload::Mixed,
    ];

    /// How it is spelled in arguments, JSON and the published table.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Ping => "ping",
            Workload::PointSelect => "point_select",
            Workload::UpdateNokey => "update_nokey",
            Workload::OltpRo => "oltp_ro",
            Workload::OltpRw => "oltp_rw",
            Workload::Convoy => "convoy",
            Workload::Mixed => "mixed",
            Workload::Disk => "disk",
        }
    }

    /// Whether what counts is a transaction of several statements.
    pub fn is_transaction(self) -> bool {
        matches!(
            self,
            Workload::OltpRo | Workload::OltpRw | Workload::Convoy | Workload::Mixed
        )
    }

    /// Whether a statement may wait for a row that another client has locked.
    pub fn waits_for_rows(self) -> bool {
        matches!(self, Workload::OltpRw | Workload::Convoy | Workload::Mixed)
    }

    /// What is counted.
    pub fn unit(self) -> &'static str {
        if self.is_transaction() {
            "transactions"
        } else {
            "statements"
        }
    }

    /// The `ROW` lines of a correct reply, where they are the same for every statement. A select that finds nothing is cheaper than one that
    /// does, so a reply with another count is an error and not a fast success.
    pub fn rows_per_reply(self) -> u32 {
        match self {
            Workload::PointSelect => 1,
            Workload::Ping
            | Workload::UpdateNokey
            | Workload::OltpRo
            | Workload::OltpRw
            | Workload::Convoy
            | Workload::Mixed
            | Workload::Disk => 0,
        }
    }
}

/// Who decides which thread runs a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheduler {
    /// The library's thread groups.
    Pool,
    /// The same with MariaDB's algorithm and defaults.
    Mariadb,
    /// The library's thread-per-connection.
    PerConnection,
    /// A hand-written thread-per-connection loop on `std`: what the library's own must not fall
    /// behind.
    StdLoop,
    /// One epoll thread and no scheduler: the floor of what any scheduler costs.
    EventLoop,
    /// The same in a process with a second thread, which sleeps: the floor of what a scheduler costs that
    /// has more threads than one. In such a process the kernel counts who holds a descriptor during each
    /// call, by two locked instructions.
    EventLoopMt,
    /// A task for each connection on tokio's threads, which run the commands themselves.
    Tokio,
    /// The same, with each command on tokio's blocking pool.
    TokioBlocking,
    /// The library's thread groups with readiness re-armed by a system call after each turn.
    OneShot,
}

impl Scheduler {
    /// In the order of a table.
    pub const ALL: [Scheduler; 9] = [
        Scheduler::Pool,
        Scheduler::Mariadb,
        Scheduler::PerConnection,
        Scheduler::StdLoop,
        Scheduler::EventLoop,
        Scheduler::EventLoopMt,
        Scheduler::Tokio,
        Scheduler::TokioBlocking,
        Scheduler::OneShot,
    ];

    /// The feature of this package that it needs, and whether this program was built with that.
    fn feature(self) -> Option<(&'static str, bool)> {
        match self {
            Scheduler::EventLoopMt => Some(("event-loop-mt", cfg!(feature = "event-loop-mt"))),
            Scheduler::Tokio => Some(("tokio", cfg!(feature = "tokio"))),
            Scheduler::TokioBlocking => Some(("tokio-blocking", cfg!(feature = "tokio-blocking"))),
            Scheduler::OneShot => Some(("one-shot", cfg!(feature = "one-shot"))),
            _ => None,
        }
    }

    /// Whether it is in every build.
    pub fn is_usual(self) -> bool {
        self.feature().is_none()
    }

    /// Those that this program was built with, in the order of a table.
    pub fn built() -> Vec<Scheduler> {
        let has = |one: &Scheduler| one.feature().is_none_or(|(_, on)| on);
        Self::ALL.into_iter().filter(has).collect()
    }

    /// # Errors
    /// If this program was built without it.
    pub fn check_built(self) -> Result<()> {
        match self.feature() {
            Some((name, false)) => Err(Error::usage(format!(
                "this program was built without the scheduler '{self}': build it with \
                 --features {name}, as in cargo run --release -p study --features {name} -- table"
            ))),
            _ => Ok(()),
        }
    }

    /// Whether it can serve this. A statement that waits for a row would stop the one thread of the event
    /// loop, and so whoever is to give the row up; a few of them stop all threads of tokio. Only the library's
    /// servers know a disk.
    pub fn serves(self, workload: Workload) -> bool {
        match self {
            Scheduler::Pool | Scheduler::Mariadb | Scheduler::PerConnection => true,
            Scheduler::EventLoop | Scheduler::EventLoopMt | Scheduler::Tokio => {
                workload != Workload::Disk && !workload.waits_for_rows()
            }
            _ => workload != Workload::Disk,
        }
    }

    /// How it is spelled in arguments, JSON and the published table.
    pub fn name(self) -> &'static str {
        match self {
            Scheduler::Pool => "pool",
            Scheduler::Mariadb => "mariadb",
            Scheduler::PerConnection => "per-connection",
            Scheduler::StdLoop => "std-loop",
            Scheduler::EventLoop => "event-loop",
            Scheduler::EventLoopMt => "event-loop-mt",
            Scheduler::Tokio => "tokio",
            Scheduler::TokioBlocking => "tokio-blocking",
            Scheduler::OneShot => "one-shot",
        }
    }
}

/// The kind of socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// A Unix stream socket.
    Unix,
    /// TCP over the loopback interface, without Nagle's algorithm.
    Tcp,
}

impl Transport {
    /// In the order of a table.
    pub const ALL: [Transport; 2] = [Transport::Unix, Transport::Tcp];

    /// The one that is measured where none is named.
    pub const USUAL: Transport = match cfg!(unix) {
        true => Transport::Unix,
        false => Transport::Tcp,
    };

    /// How it is spelled in arguments and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Unix => "unix",
            Transport::Tcp => "tcp",
        }
    }
}

/// How clients talk to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Lines of text, sqlish's own.
    Text,
    /// MySQL's, for clients that others have written.
    Mysql,
}

impl Protocol {
    /// In the order of an error message.
    pub const ALL: [Protocol; 2] = [Protocol::Text, Protocol::Mysql];

    /// How it is spelled in arguments.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Text => "text",
            Protocol::Mysql => "mysql",
        }
    }
}

/// `Display` and `FromStr` from `name` and `ALL`, so that a variant is spelled in one place.
macro_rules! spelled_by_name {
    ($type:ty, $what:literal) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::error::Error;

            fn from_str(text: &str) -> $crate::error::Result<Self> {
                Self::ALL
                    .into_iter()
                    .find(|one| one.name() == text)
                    .ok_or_else(|| {
                        let known: Vec<_> = Self::ALL.iter().map(|one| one.name()).collect();
                        $crate::error::Error::usage(format!(
                            concat!("no ", $what, " '{}'; there are: {}"),
                            text,
                            known.join(", ")
                        ))
                    })
            }
        }
    };
}

pub(crate) use spelled_by_name;

spelled_by_name!(Workload, "workload");
spelled_by_name!(Scheduler, "scheduler");
spelled_by_name!(Transport, "transport");
spelled_by_name!(Protocol, "protocol");
spelled_by_name!(HeavyKind, "kind of heavy statement");

/// What a heavy client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeavyKind {
    /// Uses the CPU.
    Burn,
    /// Sleeps, and tells the scheduler.
    Hooked,
    /// Sleeps, and does not tell it.
    Unseen,
}

impl HeavyKind {
    /// In the order of a help page.
    pub const ALL: [HeavyKind; 3] = [HeavyKind::Burn, HeavyKind::Hooked, HeavyKind::Unseen];

    /// How it is spelled in arguments and JSON.
    pub fn name(self) -> &'static str {
        match self {
            HeavyKind::Burn => "burn",
            HeavyKind::Hooked => "hooked",
            HeavyKind::Unseen => "unseen",
        }
    }
}

/// The clients that send point selects while others send something heavy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Light {
    /// Statements are due at a fixed rate, whatever has become of earlier ones.
    Open {
        /// How many clients.
        clients: usize,
        /// Statements a second, of all of them together.
        rate: u64,
    },
    /// Each client sends a statement when the one before it has been answered.
    Closed {
        /// How many clients.
        clients: usize,
    },
}

impl Light {
    /// How many clients.
    pub fn clients(self) -> usize {
        match self {
            Light::Open { clients, .. } | Light::Closed { clients } => clients,
        }
    }
}

/// A comma-separated list of names, each once, in the order given; `all` is every one there is.
pub fn parse_names<T: FromStr<Err = Error> + PartialEq + Copy>(
    text: &str,
    all: &[T],
) -> Result<Vec<T>> {
    if text == "all" {
        return Ok(all.to_vec());
    }
    let mut list = Vec::new();
    for item in text.split(',') {
        let one = item.trim().parse()?;
        if list.contains(&one) {
            return Err(Error::usage(format!("'{item}' is listed twice")));
        }
        list.push(one);
    }
    Ok(list)
}

/// As [`parse_names`]; each has to be in this build.
pub fn parse_schedulers(text: &str) -> Result<Vec<Scheduler>> {
    let list = parse_names(text, &Scheduler::built())?;
    list.iter().try_for_each(|one| one.check_built())?;
    Ok(list)
}

/// More clients than this are a typing mistake: no process may hold that many descriptors.
pub(crate) const CLIENTS_MAX: usize = 1_000_000;

/// Client counts: `16,64,256`, the doubling range `16..4096`, or the same range spelled as in
/// prose, `16,32,...,4096`. Counts ascend, so that nothing a larger count leaves behind in a server
/// (memory, cached threads) can colour a smaller one.
///
/// `least` is the smallest number that makes sense; 0 doubles to 1.
pub fn parse_clients(text: &str, least: usize) -> Result<Vec<usize>> {
    let count = |item: &str| match item.trim().parse() {
        Ok(n) if (least..=CLIENTS_MAX).contains(&n) => Ok(n),
        _ => Err(Error::usage(format!(
            "'{item}' is not a number of clients from {least} to {CLIENTS_MAX}"
        ))),
    };
    let mut list: Vec<usize> = Vec::new();
    let mut range_from: Option<usize> = None;
    for item in text.split(',') {
        if matches!(item.trim(), "..." | "..") {
            range_from = Some(
                *list
                    .last()
                    .ok_or_else(|| Error::usage("a list of clients cannot begin with '...'"))?,
            );
            continue;
        }
        let (from, to) = match (range_from.take(), item.split_once("..")) {
            (Some(from), None) => (Some(from), count(item)?),
            (None, Some((from, to))) => (Some(count(from)?), count(to)?),
            (None, None) => (None, count(item)?),
            (Some(_), Some(_)) => {
                return Err(Error::usage(format!(
                    "'...,{item}' is not a range of clients"
                )));
            }
        };
        if let Some(from) = from {
            if from > to {
                return Err(Error::usage(format!(
                    "the range of clients {from}..{to} runs backwards"
                )));
            }
            let doubled = std::iter::successors(Some(from), |n| Some((n * 2).max(1)));
            list.extend(doubled.take_while(|n| *n < to));
        }
        list.push(to);
    }
    if range_from.is_some() {
        return Err(Error::usage("a list of clients cannot end with '...'"));
    }
    list.sort_unstable();
    list.dedup();
    Ok(list)
}

/// CPU numbers as the kernel writes them: `0,2-5`.
pub fn parse_cpus(text: &str) -> Result<Vec<usize>> {
    let bad = |item: &str| {
        Error::usage(format!(
            "'{item}' is not a CPU or a range of CPUs such as 0 or 2-5"
        ))
    };
    let mut list = Vec::new();
    for item in text.split(',') {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let first: usize = first.trim().parse().map_err(|_| bad(item))?;
        let last: usize = last.trim().parse().map_err(|_| bad(item))?;
        if first > last || last >= crate::cpu::CPUS_MAX {
            return Err(bad(item));
        }
        list.extend(first..=last);
    }
    list.sort_unstable();
    list.dedup();
    Ok(list)
}

/// The inverse of [`parse_cpus`], without ranges.
pub fn show_cpus(cpus: &[usize]) -> String {
    cpus.iter()
        .map(usize::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_to_what_it_names() {
        for one in Workload::ALL {
            assert_eq!(one.name().parse(), Ok(one));
        }
        for one in Scheduler::ALL {
            assert_eq!(one.name().parse(), Ok(one));
        }
        for one in Transport::ALL {
            assert_eq!(one.name().parse(), Ok(one));
        }
        for one in HeavyKind::ALL {
            assert_eq!(one.name().parse(), Ok(one));
        }
    }

    #[test]
    fn only_those_that_a_statement_stops_are_spared_transactions_that_wait() {
        for scheduler in Scheduler::ALL {
            let left_out = |workload: &Workload| !scheduler.serves(*workload);
            let count = Workload::ALL.iter().filter(|w| left_out(w)).count();
            let stops = matches!(
                scheduler,
                Scheduler::EventLoop | Scheduler::EventLoopMt | Scheduler::Tokio
            );
            assert_eq!(count, 3 * usize::from(stops), "{scheduler}");
        }
    }

    #[test]
    fn a_scheduler_that_is_not_in_this_build_is_refused_with_the_feature_that_it_needs() {
        for scheduler in Scheduler::ALL {
            let built = Scheduler::built().contains(&scheduler);
            match parse_schedulers(scheduler.name()) {
                Ok(list) => assert!(built && list == [scheduler], "{list:?}"),
                Err(error) => {
                    let (feature, error) = (format!("--features {scheduler}"), error.to_string());
                    assert!(!built && error.contains(&feature), "{error}");
                }
            }
        }
        assert_eq!(parse_schedulers("all"), Ok(Scheduler::built()));
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = "pools".parse::<Scheduler>().unwrap_err().to_string();
        assert!(
            error.contains("'pools'") && error.contains("per-connection"),
            "{error}"
        );
    }

    #[test]
    fn a_list_of_names_keeps_its_order_and_refuses_repeats() {
        assert_eq!(
            parse_names("tcp,unix", &Transport::ALL),
            Ok(vec![Transport::Tcp, Transport::Unix])
        );
        assert_eq!(
            parse_names("all", &Transport::ALL),
            Ok(Transport::ALL.to_vec())
        );
        assert!(parse_names("tcp,tcp", &Transport::ALL).is_err());
        assert!(parse_names("", &Transport::ALL).is_err());
    }

    #[test]
    fn client_lists_may_be_explicit_doubling_or_prose() {
        let doubling = vec![16, 32, 64, 128, 256, 512, 1024, 2048, 4096];
        assert_eq!(
            parse_clients("16,32,64,128,256,512,1024,2048,4096", 1),
            Ok(doubling.clone())
        );
        assert_eq!(parse_clients("16..4096", 1), Ok(doubling.clone()));
        assert_eq!(parse_clients("16,32,...,4096", 1), Ok(doubling));
        assert_eq!(parse_clients("1, 16..50", 1), Ok(vec![1, 16, 32, 50]));
        assert_eq!(parse_clients("64,16,64", 1), Ok(vec![16, 64]));
        assert_eq!(parse_clients("7..7", 1), Ok(vec![7]));
        assert_eq!(parse_clients("0..4", 0), Ok(vec![0, 1, 2, 4]));
    }

    #[test]
    fn bad_client_lists_are_refused_by_name() {
        for text in [
            "",
            "0",
            "x",
            "16,",
            "...,16",
            "16,...",
            "32..16",
            "16...64",
            "1,...,2..4",
            "1000001",
            "-1",
        ] {
            assert!(parse_clients(text, 1).is_err(), "{text}");
        }
    }

    #[test]
    fn cpu_lists_follow_the_kernels_spelling() {
        assert_eq!(parse_cpus("0,2-4"), Ok(vec![0, 2, 3, 4]));
        assert_eq!(parse_cpus("3,1,1-2"), Ok(vec![1, 2, 3]));
        assert_eq!(show_cpus(&[0, 2, 3]), "0,2,3");
        for text in ["", "a", "2-1", "0-", "0-9999999"] {
            assert!(parse_cpus(text).is_err(), "{text}");
        }
    }
}

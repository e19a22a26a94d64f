//! `study doctor`: what on this machine will spoil a database's latency, why, and what to do.
//!
//! Everything is read from `/proc` and `/sys` below a folder, so that a copy of those of another
//! machine can be examined too. Nothing is changed.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::machine::cgroups;
use crate::plan::parse_cpus;

/// What to prepare for.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where `proc` and `sys` are: `/`.
    pub root: PathBuf,
    /// How many connections the server is to hold.
    pub clients: u64,
    /// Whether to print JSON.
    pub json: bool,
}

/// What was found out about one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The thing.
    pub name: &'static str,
    /// How it is.
    pub verdict: Verdict,
    /// What was seen.
    pub seen: String,
    /// Why it matters.
    pub reason: &'static str,
    /// What to do, if something is wrong.
    pub remedy: String,
}

/// How a thing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Good,
    /// It will cost something.
    Bad,
    /// This kernel does not say: not every machine has everything.
    Unknown,
}

impl Verdict {
    /// How it is spelled in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Good => "good",
            Verdict::Bad => "bad",
            Verdict::Unknown => "unknown",
        }
    }
}

/// Descriptors and threads that a server has beside those of its connections.
const BESIDE: u64 = 64;

/// The part of the CPUs' time that a host may take away before it counts.
const STEAL: f64 = 0.01;

/// Looks at everything.
pub fn examine(plan: &Plan) -> Vec<Finding> {
    let look = Look { root: &plan.root };
    let descriptors = plan.clients + BESIDE;
    vec![
        governor(&look),
        energy(&look),
        quota(&look),
        throttling(&look),
        affinity(&look),
        backlog(&look, plan.clients),
        files(&look, descriptors),
        threads(&look, descriptors),
        huge_pages(&look),
        steal(&look),
        clock(&look),
    ]
}

/// Whether something is wrong.
pub fn is_ill(findings: &[Finding]) -> bool {
    findings.iter().any(|one| one.verdict == Verdict::Bad)
}

/// For people: a line for each thing, with the reason and the remedy below what is wrong.
pub fn render(findings: &[Finding]) -> String {
    let mut text = String::new();
    for one in findings {
        let mark = match one.verdict {
            Verdict::Good => "ok ",
            Verdict::Bad => "BAD",
            Verdict::Unknown => " ? ",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{mark}  {:<18}{}", one.name, one.seen);
        if one.verdict == Verdict::Bad {
            let _ = writeln!(text, "     why: {}\n     do:  {}", one.reason, one.remedy);
        }
    }
    let bad = findings.iter().filter(|one| one.verdict == Verdict::Bad);
    let _ = match bad.count() {
        0 => writeln!(text, "\nnothing here will spoil a server's latency"),
        1 => writeln!(text, "\n1 thing will spoil a server's latency"),
        n => writeln!(text, "\n{n} things will spoil a server's latency"),
    };
    text
}

/// For programs: `{"ill": .., "findings": [{..}, ..]}`.
pub fn json(findings: &[Finding]) -> String {
    let all: Vec<Value> = findings
        .iter()
        .map(|one| {
            json!({
                "name": one.name,
                "verdict": one.verdict.name(),
                "seen": one.seen,
                "reason": one.reason,
                "remedy": one.remedy,
            })
        })
        .collect();
    format!(
        "{:#}\n",
        json!({ "ill": is_ill(findings), "findings": all })
    )
}

struct Look<'a> {
    root: &'a Path,
}

impl Look<'_> {
    fn text(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.root.join(path)).ok()?;
        Some(text.trim().to_string())
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The CPUs that are there.
    fn online(&self) -> Option<Vec<usize>> {
        parse_cpus(&self.text("sys/devices/system/cpu/online")?).ok()
    }

    /// The CPUs that may be used: those of a shell that starts a server.
    fn allowed(&self) -> Option<Vec<usize>> {
        let status = self.text("proc/self/status")?;
        let line = status
            .lines()
            .find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
        parse_cpus(line?.trim()).ok()
    }

    /// The different values of a file that each CPU in use has.
    fn of_cpus(&self, file: &str) -> BTreeSet<String> {
        let cpus = self.allowed().or_else(|| self.online()).unwrap_or_default();
        cpus.iter()
            .filter_map(|cpu| self.text(&format!("sys/devices/system/cpu/cpu{cpu}/{file}")))
            .collect()
    }

    /// A soft limit of the process; `unlimited` is the largest number.
    fn limit(&self, name: &str) -> Option<u64> {
        let limits = self.text("proc/self/limits")?;
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        match line.split_whitespace().next()? {
            "unlimited" => Some(u64::MAX),
            soft => soft.parse().ok(),
        }
    }

    fn cgroups(&self, controller: &str) -> Vec<PathBuf> {
        cgroups(self.root, controller)
    }
}

fn finding(
    name: &'static str,
    seen: Option<(bool, String)>,
    reason: &'static str,
    remedy: impl Into<String>,
) -> Finding {
    let (verdict, seen) = match seen {
        Some((true, seen)) => (Verdict::Good, seen),
        Some((false, seen)) => (Verdict::Bad, seen),
        None => (Verdict::Unknown, "this kernel does not say".into()),
    };
    Finding {
        name,
        verdict,
        seen,
        reason,
        remedy: remedy.into(),
    }
}

fn joined(all: &BTreeSet<String>) -> String {
    all.iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

fn governor(look: &Look<'_>) -> Finding {
    let all = look.of_cpus("cpufreq/scaling_governor");
    let seen = (!all.is_empty()).then(|| (all.iter().all(|g| g == "performance"), joined(&all)));
    finding(
        "CPU governor",
        seen,
        "a CPU that saves power is slow when a statement comes, and a database's threads sleep \
         too often to keep it awake; published of one server: 17,029 against 21,226 transactions, \
         a restore of 4 h 07 against 2 h 35",
        "cpupower frequency-set -g performance (or write it to cpufreq/scaling_governor of each \
         CPU)",
    )
}

/// Whether the CPU itself is told to save power, whatever the governor says.
fn energy(look: &Look<'_>) -> Finding {
    let preference = look.of_cpus("cpufreq/energy_performance_preference");
    let bias = look.of_cpus("power/energy_perf_bias");
    // 6 is balanced, 15 saves most.
    let saves = |bias: &String| bias.parse::<u64>().is_ok_and(|bias| bias > 6);
    let wrong = preference
        .iter()
        .any(|p| matches!(p.as_str(), "power" | "balance_power"))
        || bias.iter().any(saves);
    let parts: Vec<String> = [("preference", &preference), ("bias", &bias)]
        .into_iter()
        .filter(|(_, all)| !all.is_empty())
        .map(|(name, all)| format!("{name} {}", joined(all)))
        .collect();
    finding(
        "energy policy",
        (!parts.is_empty()).then(|| (!wrong, parts.join("; "))),
        "the processor chooses its own speed within what the governor allows, and is told here to \
         choose a low one",
        "write 'performance' to cpufreq/energy_performance_preference of each CPU, or \
         x86_energy_perf_policy performance",
    )
}

fn quota(look: &Look<'_>) -> Finding {
    let quota = look
        .cgroups("cpu")
        .iter()
        .filter_map(|folder| crate::machine::quota_in(folder))
        .min_by(f64::total_cmp);
    let seen = match quota {
        None => "none".into(),
        Some(cpus) => format!("{cpus:.2} CPUs"),
    };
    finding(
        "CPU quota",
        Some((quota.is_none(), seen)),
        "a group that has used up its quota stands still until the period ends, up to 100 ms, in \
         the middle of whatever it does: a lock, a commit",
        "give the server whole CPUs (a cpuset, shares or weights) in place of a quota",
    )
}

fn throttling(look: &Look<'_>) -> Finding {
    let field = |folder: &PathBuf| {
        let text = fs::read_to_string(folder.join("cpu.stat")).ok()?;
        let line = text.lines().find_map(|l| l.strip_prefix("nr_throttled "))?;
        line.trim().parse::<u64>().ok()
    };
    let times = look.cgroups("cpu").iter().filter_map(field).max();
    finding(
        "CPU throttling",
        times.map(|times| {
            (
                times == 0,
                format!("{times} times since the group was made"),
            )
        }),
        "the quota has stopped this group already",
        "raise the quota or take it away, then look again",
    )
}

fn affinity(look: &Look<'_>) -> Finding {
    let seen = look.allowed().zip(look.online()).map(|(allowed, online)| {
        let left_out = online.iter().filter(|cpu| !allowed.contains(cpu)).count();
        let seen = format!("{} of {} CPUs", online.len() - left_out, online.len());
        (left_out == 0, seen)
    });
    finding(
        "affinity",
        seen,
        "a server that may not use all CPUs counts those that it may use, if it counts well, and \
         queues on them while others idle",
        "start it without taskset, numactl or CPUAffinity=, unless that is meant",
    )
}

fn backlog(look: &Look<'_>, clients: u64) -> Finding {
    let most = look.number("proc/sys/net/core/somaxconn");
    finding(
        "somaxconn",
        most.map(|most| (most >= clients, format!("{most}, for {clients} clients"))),
        "the kernel cuts a listener's backlog to this; when all clients come at once, after a \
         restart, the rest is refused (Unix) or comes seconds later (TCP)",
        format!("sysctl -w net.core.somaxconn={clients}"),
    )
}

fn files(look: &Look<'_>, needed: u64) -> Finding {
    let process = look.limit("Max open files");
    let machine = look.number("proc/sys/fs/file-max");
    let least = process.into_iter().chain(machine).min();
    finding(
        "open files",
        least.map(|least| (least >= needed, format!("{least}, {needed} needed"))),
        "a connection is a descriptor; a server that has none left can accept nobody and open no \
         file",
        format!("ulimit -n {needed}, or LimitNOFILE={needed} in the service"),
    )
}

fn threads(look: &Look<'_>, needed: u64) -> Finding {
    let group = look.cgroups("pids").into_iter().filter_map(|folder| {
        let text = fs::read_to_string(folder.join("pids.max")).ok()?;
        text.trim().parse::<u64>().ok()
    });
    // A thread's stack and its guard page are two mappings.
    let mappings = look.number("proc/sys/vm/max_map_count").map(|n| n / 2);
    let limits = [
        ("limit on processes", look.limit("Max processes")),
        ("threads-max", look.number("proc/sys/kernel/threads-max")),
        ("pid_max", look.number("proc/sys/kernel/pid_max")),
        ("half of max_map_count", mappings),
        ("pids.max", group.min()),
    ];
    let least = limits
        .iter()
        .filter_map(|(name, limit)| Some((limit.as_ref()?, name)))
        .min();
    finding(
        "threads",
        least.map(|(least, name)| {
            (
                *least >= needed,
                format!("{least} by {name}, {needed} needed"),
            )
        }),
        "thread-per-connection needs a thread for each; a pool needs few, but one whose commands \
         block needs many",
        format!(
            "ulimit -u {needed}, TasksMax={needed} in the service, or sysctl kernel.threads-max, \
             kernel.pid_max, vm.max_map_count"
        ),
    )
}

fn huge_pages(look: &Look<'_>) -> Finding {
    let chosen = |file: &str| {
        let text = look.text(&format!("sys/kernel/mm/transparent_hugepage/{file}"))?;
        let (_, rest) = text.split_once('[')?;
        Some(rest.split_once(']')?.0.to_string())
    };
    finding(
        "huge pages",
        chosen("enabled").map(|enabled| (enabled != "always", format!("transparent: {enabled}"))),
        "the kernel stops a thread to put pages together, and gives thousands of stacks 2 MiB \
         each that they do not need",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )
}

fn steal(look: &Look<'_>) -> Finding {
    let share = look.text("proc/stat").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // user to steal; guests are part of user.
        let ticks: Vec<u64> = line
            .split_whitespace()
            .take(8)
            .map_while(|t| t.parse().ok())
            .collect();
        let all = ticks.iter().sum::<u64>();
        (all > 0).then_some(*ticks.get(7)? as f64 / all as f64)
    });
    finding(
        "steal time",
        share.map(|share| {
            (
                share <= STEAL,
                format!("{:.2}% since the start", share * 100.0),
            )
        }),
        "the host gives this machine's CPUs to others; a thread stands still in the middle of a \
         lock, and nobody in here can see it",
        "a host that is not oversold, or CPUs of this machine's own",
    )
}

fn clock(look: &Look<'_>) -> Finding {
    let source = look.text("sys/devices/system/clocksource/clocksource0/current_clocksource");
    let slow = |s: &str| {
        matches!(
            s,
            "hpet" | "acpi_pm" | "jiffies" | "refined-jiffies" | "pit" | "xen"
        )
    };
    finding(
        "clock source",
        source.map(|source| (!slow(&source), source)),
        "reading this clock is a system call or slow hardware, a microsecond in place of 20 ns, \
         several times a command",
        "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource, if it is \
         among available_clocksource; else look in the kernel's log for why it was given up",
    )
}

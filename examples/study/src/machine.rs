//! The machine: the facts without which a number means nothing, and the warnings about those that
//! spoil it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::cpu::{self, Split};
use crate::os;
use crate::plan::show_cpus;

/// What is written on top of every result.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The processor's own name.
    pub cpu_model: String,
    /// CPUs this process may run on.
    pub cores: usize,
    /// The system's name and release.
    pub kernel: String,
    /// The frequency governor of the CPUs used, or "unknown".
    pub governor: String,
    /// The CPU quota of the control group in CPUs, or "none".
    pub quota: String,
    /// The commit of the source tree, "-dirty" if it was changed; "unknown" without git.
    pub commit: String,
    /// As the tool was called.
    pub command_line: String,
    /// When, in UTC.
    pub date: String,
    /// Who ran where.
    pub split: Split,
}

impl Machine {
    /// Looks around.
    pub fn look(split: &Split) -> Machine {
        let used = split.all();
        Machine {
            cpu_model: read("/proc/cpuinfo")
                .and_then(|text| cpu_model(&text))
                .unwrap_or_else(unknown),
            cores: cpu::allowed().map_or(used.len(), |cpus| cpus.len()),
            kernel: os::system(),
            governor: governor(&used),
            quota: quota().map_or("none".into(), |cpus| format!("{cpus:.2} CPUs")),
            commit: commit().unwrap_or_else(unknown),
            command_line: command_line(),
            date: date(
                SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .map_or(0, |since| since.as_secs()),
            ),
            split: split.clone(),
        }
    }

    /// What a reader of the numbers has to be warned of, a line each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        match self.governor.as_str() {
            "performance" => {}
            "unknown" => warnings.push(
                "the CPU frequency governor is unknown (a virtual machine?): speeds may drift \
                 between rounds"
                    .into(),
            ),
            other => warnings.push(format!(
                "the CPU frequency governor is '{other}', not 'performance': speeds may \
                 drift between rounds"
            )),
        }
        if self.quota != "none" {
            warnings.push(format!(
                "a CPU quota of {} is set: a process that has used it up stands still, \
                 whatever its scheduler",
                self.quota
            ));
        }
        match cpu::shared_core(&self.split, cpu::core_of) {
            Some((server, client)) if server == client => warnings.push(format!(
                "server and client share CPU {server}: what one uses the other lacks"
            )),
            Some((server, client)) => warnings.push(format!(
                "CPU {server} (server) and CPU {client} (client) are one core: they slow \
                 each other down"
            )),
            None => {}
        }
        warnings
    }

    /// The facts, each with its name.
    pub fn facts(&self) -> Vec<(String, String)> {
        [
            (
                "processor",
                format!("{}, CPUs: {}", self.cpu_model, self.cores),
            ),
            ("kernel", self.kernel.clone()),
            ("server", format!("CPUs {}", show_cpus(&self.split.server))),
            ("clients", format!("CPUs {}", show_cpus(&self.split.client))),
            ("governor", self.governor.clone()),
            ("quota", self.quota.clone()),
            ("commit", self.commit.clone()),
            ("date", self.date.clone()),
            ("command", self.command_line.clone()),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .to_vec()
    }

    /// The facts as the lines above a table.
    pub fn lines(&self) -> Vec<String> {
        vec![
            format!(
                "machine  {}, CPUs: {}, {}",
                self.cpu_model, self.cores, self.kernel
            ),
            format!(
                "cpus     server {}, client {}; governor {}, quota {}",
                show_cpus(&self.split.server),
                show_cpus(&self.split.client),
                self.governor,
                self.quota
            ),
            format!("commit   {}, {}", self.commit, self.date),
            format!("command  {}", self.command_line),
        ]
    }
}

fn unknown() -> String {
    "unknown".into()
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_string())
}

/// "model name" on x86; on Arm the kernel gives numbers only.
fn cpu_model(cpuinfo: &str) -> Option<String> {
    let value = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    value("model name").or_else(|| {
        Some(format!(
            "implementer {} part {}",
            value("CPU implementer")?,
            value("CPU part")?
        ))
    })
}

fn governor(cpus: &[usize]) -> String {
    let mut all: Vec<String> = cpus
        .iter()
        .map(|cpu| {
            read(format!(
                "/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"
            ))
            .unwrap_or_else(unknown)
        })
        .collect();
    all.sort_unstable();
    all.dedup();
    all.join("+")
}

/// The tightest quota above this process, in CPUs, from either version of control groups.
fn quota() -> Option<f64> {
    let folders = cgroups(Path::new("/"), "cpu");
    let limits = folders.iter().filter_map(|folder| quota_in(folder));
    limits.min_by(f64::total_cmp)
}

/// The folders of the control groups above this process that `controller` may have limits in, with
/// `proc` and `sys` below `root`. A limit holds for everything below it, so each ancestor counts.
pub(crate) fn cgroups(root: &Path, controller: &str) -> Vec<PathBuf> {
    let groups = read(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut folders = Vec::new();
    for line in groups.lines() {
        // hierarchy-id:controllers:path; version 2 has neither id nor controllers.
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (
            parts.next().unwrap_or_default(),
            parts.next().unwrap_or_default(),
        );
        let mounts = if controllers.is_empty() {
            vec![String::new(), "unified".into()]
        } else if controllers.split(',').any(|one| one == controller) {
            vec![controller.into(), controllers.into()]
        } else {
            Vec::new()
        };
        for below in Path::new(path.trim_start_matches('/')).ancestors() {
            let mounted = mounts
                .iter()
                .map(|mount| root.join("sys/fs/cgroup").join(mount).join(below));
            folders.extend(mounted);
        }
    }
    folders
}

pub(crate) fn quota_in(folder: &Path) -> Option<f64> {
    let text = read(folder.join("cpu.max")).or_else(|| {
        let quota = read(folder.join("cpu.cfs_quota_us"))?;
        Some(format!(
            "{quota} {}",
            read(folder.join("cpu.cfs_period_us"))?
        ))
    })?;
    parse_quota(&text)
}

/// "quota period" in microseconds; "max" and -1 stand for none.
fn parse_quota(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.trim().parse().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// Asked of the tree this was built from, so it is right for `cargo run` and may be stale for a
/// copied binary.
fn commit() -> Option<String> {
    let output = Command::new("git")
        .args([
            "-C",
            env!("CARGO_MANIFEST_DIR"),
            "describe",
            "--always",
            "--dirty",
            "--exclude",
            "*",
        ])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_string())
}

fn command_line() -> String {
    let mut args = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned());
    let program = args.next().unwrap_or_default();
    let name = Path::new(&program)
        .file_name()
        .map_or(program.clone(), |name| name.to_string_lossy().into_owned());
    std::iter::once(name)
        .chain(args)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Seconds since 1970 as `2026-01-31T23:59:59Z`: the civil calendar in whole eras of 400 years,
/// which all have the same number of days. The year is taken to begin in March, so that the leap
/// day is its last.
fn date(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(governor: &str, quota: &str, server: usize, client: usize) -> Machine {
        Machine {
            governor: governor.into(),
            quota: quota.into(),
            ..Machine::look(&Split {
                server: vec![server],
                client: vec![client],
            })
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(951_868_799), "2000-02-29T23:59:59Z");
        assert_eq!(date(1_767_225_599), "2025-12-31T23:59:59Z");
        assert_eq!(date(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn quotas_are_read_in_both_spellings_and_none_is_none() {
        assert_eq!(parse_quota("150000 100000"), Some(1.5));
        assert_eq!(parse_quota("max 100000"), None);
        assert_eq!(parse_quota("-1 100000"), None);
        assert_eq!(parse_quota(""), None);
    }

    #[test]
    fn the_cpu_has_a_name_on_x86_and_numbers_on_arm() {
        assert_eq!(
            cpu_model("processor : 0\nmodel name\t: Fast 9\n").as_deref(),
            Some("Fast 9")
        );
        assert_eq!(
            cpu_model("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n").as_deref(),
            Some("implementer 0x41 part 0xd0c")
        );
    }

    #[test]
    fn each_thing_that_spoils_a_number_is_warned_of() {
        assert_eq!(
            machine("performance", "none", 100_000, 100_001).warnings(),
            Vec::<String>::new()
        );
        assert!(
            machine("powersave", "none", 100_000, 100_001).warnings()[0].contains("'powersave'")
        );
        assert!(machine("unknown", "none", 100_000, 100_001).warnings()[0].contains("unknown"));
        assert!(
            machine("performance", "1.50 CPUs", 100_000, 100_001).warnings()[0]
                .contains("1.50 CPUs")
        );
        assert!(
            machine("performance", "none", 100_000, 100_000).warnings()[0]
                .contains("share CPU 100000")
        );
    }
}

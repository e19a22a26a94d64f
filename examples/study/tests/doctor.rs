//! `study doctor` on machines that are made up, one thing wrong at a time.

#![cfg(target_os = "linux")]

mod common;

use std::fs;
use std::path::Path;

use serde_json::Value;
use study::doctor::{self, Finding, Plan, Verdict};

use common::{Folder, refused, study, text};

/// A machine that is as it should be, for 4096 clients: two CPUs, control groups of version 2.
const GOOD: [(&str, &str); 18] = [
    ("sys/devices/system/cpu/online", "0-1\n"),
    (
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
        "performance\n",
    ),
    (
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
        "performance\n",
    ),
    (
        "sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference",
        "performance\n",
    ),
    ("sys/devices/system/cpu/cpu1/power/energy_perf_bias", "0\n"),
    (
        "sys/devices/system/clocksource/clocksource0/current_clocksource",
        "tsc\n",
    ),
    (
        "sys/kernel/mm/transparent_hugepage/enabled",
        "always [madvise] never\n",
    ),
    ("sys/fs/cgroup/db/cpu.max", "max 100000\n"),
    (
        "sys/fs/cgroup/db/cpu.stat",
        "usage_usec 5\nnr_throttled 0\n",
    ),
    ("sys/fs/cgroup/db/pids.max", "max\n"),
    ("proc/self/cgroup", "0::/db/server\n"),
    ("proc/self/status", "Name:\tsh\nCpus_allowed_list:\t0-1\n"),
    (
        "proc/self/limits",
        "Limit   Soft Limit  Hard Limit  Units\nMax processes   unlimited   unlimited   processes\n\
         Max open files   65536   65536   files\n",
    ),
    (
        "proc/stat",
        "cpu  100 0 100 800 0 0 0 1 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n",
    ),
    ("proc/sys/net/core/somaxconn", "4096\n"),
    ("proc/sys/kernel/threads-max", "100000\n"),
    ("proc/sys/kernel/pid_max", "32768\n"),
    ("proc/sys/vm/max_map_count", "65530\n"),
];

fn machine(name: &str, but: &[(&str, &str)]) -> Folder {
    let folder = Folder::new(&format!("doctor-{name}"));
    for (path, text) in GOOD.iter().chain(but) {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn examined(root: &Path) -> Vec<Finding> {
    doctor::examine(&Plan {
        root: root.into(),
        clients: 4096,
        json: false,
    })
}

#[test]
fn a_good_machine_is_told_that_it_is() {
    let folder = machine("good", &[]);
    let all = examined(&folder.0);
    assert!(
        all.iter().all(|one| one.verdict == Verdict::Good),
        "{all:#?}"
    );
    assert!(!doctor::is_ill(&all));
    assert!(doctor::render(&all).ends_with("nothing here will spoil a server's latency\n"));
}

#[test]
fn each_thing_that_is_wrong_is_found_and_nothing_else() {
    let limits = |processes: &str, files: &str| {
        format!(
            "Max processes   {processes}   unlimited   processes\n\
             Max open files   {files}   65536   files\n"
        )
    };
    let (few_files, few_threads) = (limits("unlimited", "1024"), limits("1000", "65536"));
    let cases: &[(&str, &str, &str, &str)] = &[
        (
            "CPU governor",
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
            "powersave",
            "performance, powersave",
        ),
        (
            "energy policy",
            "sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference",
            "balance_power",
            "balance_power",
        ),
        (
            "energy policy",
            "sys/devices/system/cpu/cpu0/power/energy_perf_bias",
            "15",
            "15",
        ),
        // A limit of an ancestor holds here too.
        (
            "CPU quota",
            "sys/fs/cgroup/db/cpu.max",
            "150000 100000",
            "1.50 CPUs",
        ),
        (
            "CPU throttling",
            "sys/fs/cgroup/db/cpu.stat",
            "nr_throttled 12\n",
            "12 times",
        ),
        (
            "affinity",
            "proc/self/status",
            "Cpus_allowed_list:\t0\n",
            "1 of 2",
        ),
        ("somaxconn", "proc/sys/net/core/somaxconn", "128", "128"),
        (
            "open files",
            "proc/self/limits",
            &few_files,
            "1024, 4160 needed",
        ),
        (
            "threads",
            "proc/self/limits",
            &few_threads,
            "1000 by limit on processes",
        ),
        (
            "threads",
            "sys/fs/cgroup/db/pids.max",
            "2000",
            "2000 by pids.max",
        ),
        (
            "threads",
            "proc/sys/vm/max_map_count",
            "8000",
            "4000 by half of max_map_count",
        ),
        (
            "huge pages",
            "sys/kernel/mm/transparent_hugepage/enabled",
            "[always] madvise never",
            "always",
        ),
        (
            "steal time",
            "proc/stat",
            "cpu  100 0 100 700 0 0 0 100 0 0",
            "10.00%",
        ),
        (
            "clock source",
            "sys/devices/system/clocksource/clocksource0/current_clocksource",
            "hpet",
            "hpet",
        ),
    ];
    for (at, (name, path, text, seen)) in cases.iter().enumerate() {
        let folder = machine(&format!("case-{at}"), &[(path, text)]);
        let all = examined(&folder.0);
        let bad: Vec<&Finding> = all
            .iter()
            .filter(|one| one.verdict == Verdict::Bad)
            .collect();
        assert_eq!(bad.len(), 1, "{name}: {bad:#?}");
        assert!(
            bad[0].name == *name && bad[0].seen.contains(seen),
            "{name}: {bad:#?}"
        );
        assert!(!bad[0].reason.is_empty() && !bad[0].remedy.is_empty());
        let page = doctor::render(&all);
        assert!(
            page.contains(bad[0].reason) && page.contains(&bad[0].remedy),
            "{page}"
        );
    }
}

#[test]
fn control_groups_of_the_first_version_are_read_too() {
    let folder = machine(
        "first",
        &[
            ("proc/self/cgroup", "3:cpu,cpuacct:/db\n2:pids:/db\n"),
            ("sys/fs/cgroup/cpu/db/cpu.cfs_quota_us", "50000"),
            ("sys/fs/cgroup/cpu/db/cpu.cfs_period_us", "100000"),
            ("sys/fs/cgroup/pids/db/pids.max", "100"),
        ],
    );
    let all = examined(&folder.0);
    let bad: Vec<_> = all
        .iter()
        .filter(|one| one.verdict == Verdict::Bad)
        .collect();
    assert_eq!(
        bad.iter().map(|one| one.name).collect::<Vec<_>>(),
        ["CPU quota", "threads"]
    );
    assert_eq!(bad[0].seen, "0.50 CPUs");
}

#[test]
fn what_a_kernel_does_not_say_is_unknown_and_no_illness() {
    let folder = Folder::new("doctor-nothing");
    let all = examined(&folder.0);
    assert!(!doctor::is_ill(&all), "{all:#?}");
    assert!(
        all.iter()
            .filter(|one| one.verdict == Verdict::Unknown)
            .count()
            >= 8
    );
}

#[test]
fn the_exit_code_says_whether_something_is_wrong_and_json_says_what() {
    let (good, bad) = (
        machine("exit-0", &[]),
        machine("exit-1", &[("proc/sys/net/core/somaxconn", "128")]),
    );
    for (folder, code) in [(&good, 0), (&bad, 1)] {
        let root = folder.0.to_str().unwrap();
        let output = study(&format!("doctor --json --root {root}"))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code));
        let value: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
        assert_eq!(value["ill"], code == 1);
        let all = value["findings"].as_array().unwrap();
        let ill: Vec<_> = all.iter().filter(|one| one["verdict"] == "bad").collect();
        assert_eq!(ill.len(), code as usize);
        assert!(
            all.iter()
                .all(|one| one["seen"].is_string() && one["reason"].is_string())
        );
    }
    // Fewer clients need less.
    let root = bad.0.to_str().unwrap();
    let output = study(&format!("doctor --clients 100 --root {root}"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
}

#[test]
fn this_machine_is_examined_without_a_complaint_of_the_tool() {
    let output = study("doctor").output().unwrap();
    assert!(matches!(output.status.code(), Some(0 | 1)));
    assert!(text(&output.stdout).contains("clock source") && output.stderr.is_empty());
    refused("doctor --clients 0", "--clients");
    refused("doctor --nonsense", "nonsense");
}

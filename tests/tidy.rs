//! House rules that a machine can keep. Each reads the tree and says, where it is broken, what to
//! do instead; each is tried on a small bad example first.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

// ---- the tree ----

/// A file, by its path from the root.
#[derive(Clone, Debug)]
struct File {
    path: String,
    text: String,
    /// Rust only: the text without comments and without what stands in string literals; lines are
    /// where they were.
    code: String,
}

impl File {
    fn new(path: &str, text: &str) -> Self {
        let rust = path.ends_with(".rs");
        Self {
            path: path.into(),
            text: text.into(),
            code: if rust { code_of(text) } else { String::new() },
        }
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn is_in(&self, folder: &str) -> bool {
        self.path.starts_with(folder)
    }

    fn says(&self, line: usize, what: impl std::fmt::Display) -> String {
        format!("{}:{line}: {what}", self.path)
    }

    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(n, line)| (n + 1, line))
    }

    fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().map(|(n, line)| (n + 1, line))
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every Rust and Markdown file, but for what is built or found.
fn tree() -> Vec<File> {
    const SKIPPED: [&str; 5] = ["target", ".git", "corpus", "artifacts", "node_modules"];
    let mut files = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the tree") {
            let path = entry.expect("an entry of a folder").path();
            let name = path.file_name().expect("it has a name").to_string_lossy();
            if path.is_dir() {
                if !SKIPPED.contains(&&*name) {
                    folders.push(path);
                }
            } else if name.ends_with(".rs") || name.ends_with(".md") {
                let inside = path.strip_prefix(root()).expect("it is in the tree");
                let text = fs::read_to_string(&path).expect("text in UTF-8");
                files.push(File::new(&inside.to_string_lossy(), &text));
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(files.len() > 20, "the tree was not found");
    files
}

/// Blanks comments and the insides of strings and characters.
fn code_of(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    let blank = |out: &mut String, from: usize, to: usize| {
        for c in &chars[from..to.min(chars.len())] {
            out.push(if *c == '\n' { '\n' } else { ' ' });
        }
    };
    while i < chars.len() {
        let from = i;
        match at(i) {
            '/' if at(i + 1) == '/' => {
                while i < chars.len() && at(i) != '\n' {
                    i += 1;
                }
            }
            '/' if at(i + 1) == '*' => {
                i += 2;
                while i < chars.len() && !(at(i) == '*' && at(i + 1) == '/') {
                    i += 1;
                }
                i += 2;
            }
            '"' => {
                i += 1;
                while i < chars.len() && at(i) != '"' {
                    i += if at(i) == '\\' { 2 } else { 1 };
                }
                i += 1;
            }
            'r' if !out.ends_with(is_word) && (at(i + 1) == '"' || at(i + 1) == '#') => {
                let hashes = (i + 1..).take_while(|j| at(*j) == '#').count();
                if at(i + 1 + hashes) != '"' {
                    out.push('r'); // a raw identifier
                    i += 1;
                    continue;
                }
                i += 2 + hashes;
                let closes = |i| at(i) == '"' && (1..=hashes).all(|h| at(i + h) == '#');
                while i < chars.len() && !closes(i) {
                    i += 1;
                }
                i += 1 + hashes;
            }
            '\'' if at(i + 1) == '\\' => {
                i += 3;
                while i < chars.len() && at(i) != '\'' {
                    i += 1;
                }
                i += 1;
            }
            '\'' if at(i + 2) == '\'' => i += 3,
            c => {
                out.push(c);
                i += 1;
                continue;
            }
        }
        blank(&mut out, from, i);
    }
    out
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c| !is_word(c)).filter(|word| !word.is_empty())
}

/// The paths that start with `prefix::` in a piece of code, groups in braces taken apart.
fn paths(code: &str, prefix: &str) -> Vec<(usize, String)> {
    let needle = format!("{prefix}::");
    let mut found = Vec::new();
    for (at, _) in code.match_indices(&needle) {
        if code[..at].ends_with(is_word) || code[..at].ends_with("::") {
            continue;
        }
        let line = 1 + code[..at].matches('\n').count();
        expand(&code[at + needle.len()..], "", &mut |path| {
            found.push((line, path));
        });
    }
    found
}

/// Reads one path, or a group of them; returns what follows.
fn expand<'a>(code: &'a str, before: &str, found: &mut dyn FnMut(String)) -> &'a str {
    let mut rest = code.trim_start();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner.trim_start();
        while !rest.starts_with('}') && !rest.is_empty() {
            rest = expand(rest, before, found).trim_start();
            rest = rest.trim_start_matches(|c: char| c == ',' || c.is_whitespace());
        }
        return rest.strip_prefix('}').unwrap_or(rest);
    }
    let end = rest.find(|c| !is_word(c) && c != '*').unwrap_or(rest.len());
    let (name, after) = rest.split_at(end.max(usize::from(end == 0 && !rest.is_empty())));
    let path = format!("{before}{name}");
    match after.strip_prefix("::") {
        // `::<` begins type arguments.
        Some(after) if !after.starts_with('<') => expand(after, &format!("{path}::"), found),
        _ => {
            found(path);
            after
        }
    }
}

/// Fails with all of what a rule found.
fn report(rule: impl FnOnce(&[File]) -> Vec<String>) {
    let found = rule(&tree());
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

/// Files for trying a rule.
fn example(files: &[(&str, &str)]) -> Vec<File> {
    files
        .iter()
        .map(|(path, text)| File::new(path, text))
        .collect()
}

#[test]
fn comments_and_strings_are_not_code() {
    let code = code_of("a /* b */ \"c\\\"d\" r#\"e\"# 'f' '\\'' g<'h> // i\nj");
    assert_eq!(words(&code).collect::<Vec<_>>(), ["a", "g", "h", "j"]);
}

#[test]
fn paths_are_found_in_groups() {
    let code = "use crate::{a::{B, c::D}, e}; f(crate::g::<H>::i, x_crate::j)";
    let found: Vec<String> = paths(code, "crate").into_iter().map(|(_, p)| p).collect();
    assert_eq!(found, ["a::B", "a::c::D", "e", "g"]);
}

// ---- arrows ----

/// Which module may use which; what is not said may not be. `x::*` stands for all modules in `x`.
/// First the words and contracts, then what decides, what acts, what is outside, and at last what
/// users touch.
const ARROWS: [(&str, &[&str]); 30] = [
    ("id", &[]),
    ("sync", &[]),
    ("port", &[]),
    ("stream", &[]),
    ("wait", &["id"]),
    ("command", &["mutant", "sync"]),
    ("error", &["handler", "stream"]),
    ("config", &["error"]),
    ("histogram", &[]),
    ("event", &["handler", "id", "stream"]),
    ("stats", &["conn", "histogram", "wait"]),
    ("explain", &["conn", "stats", "wait"]),
    ("handler", &["conn"]),
    // A connection reads and writes its socket, leads to its server's handle, and shows its state.
    (
        "conn",
        &[
            "command",
            "config",
            "handler",
            "id",
            "stream",
            "sync",
            "transport",
            "wait",
            "os::socket",
            "os::words",
            "server",
            "server::registry",
        ],
    ),
    // Between a connection and its socket.
    ("transport", &["os::socket"]),
    ("mutant", &[]),
    (
        "sched",
        &["config", "handler", "id", "mutant", "port", "stats"],
    ),
    // The kernels of a command are beside the group's.
    (
        "group",
        &[
            "command",
            "histogram",
            "mutant",
            "sched",
            "port",
            "stats",
            "sync",
            "wait",
        ],
    ),
    // What it plays the parts of, it takes the constants from.
    (
        "sim",
        &[
            "config",
            "group::monitor",
            "group::worker",
            "port",
            "sched",
            "stats",
        ],
    ),
    ("os", &["os::clock", "port", "stream", "sync"]),
    // A turn reports to the registry, and registers with the poller.
    (
        "serve",
        &[
            "config",
            "conn",
            "handler",
            "port",
            "sched",
            "wait",
            "os::poller",
            "server::bed",
            "server::registry",
        ],
    ),
    // Where a connection's own thread waits: below the turns, which lie down there.
    (
        "server::bed",
        &[
            "conn",
            "handler",
            "os::bell",
            "os::socket",
            "os::words",
            "port",
            "sched",
            "server::registry",
            "sync",
        ],
    ),
    // Beside the registry, whose part it is.
    ("server::budget", &["conn", "server::registry", "sync"]),
    // Both schedulers report to it, so it knows neither.
    (
        "server::registry",
        &[
            "config",
            "conn",
            "handler",
            "event",
            "histogram",
            "os::bell",
            "os::clock",
            "os::socket",
            "server::budget",
            "server::events",
            "server::tally",
            "server::watch",
            "stats",
            "stream",
            "sync",
            "wait",
        ],
    ),
    // It knows a connection's socket only.
    (
        "server::linger",
        &["conn", "os::lookout", "os::socket", "sync", "transport"],
    ),
    (
        "server::tally",
        &["conn", "handler", "server::registry", "sync"],
    ),
    ("server::threads", &["id", "os::affinity", "sync"]),
    // What users of the kit touch.
    (
        "test_util",
        &[
            "config",
            "conn",
            "handler",
            "os::test_door",
            "server",
            "sync",
            "wait",
        ],
    ),
    ("server::events", &["event", "server::threads", "sync"]),
    (
        "server",
        &[
            "command",
            "config",
            "conn",
            "error",
            "event",
            "explain",
            "group",
            "group::*",
            "handler",
            "histogram",
            "os::*",
            "port",
            "sched",
            "serve",
            "server::*",
            "stats",
            "stream",
            "sync",
            "wait",
        ],
    ),
];

/// The module that a file is, and the folder that it is in.
fn module_of(path: &str) -> Option<(String, String)> {
    let inside = path.strip_prefix("src/")?.strip_suffix(".rs")?;
    let name = inside
        .strip_suffix("/mod")
        .unwrap_or(inside)
        .replace('/', "::");
    let folder = name.split("::").next()?.to_owned();
    (name != "lib").then_some((name, folder))
}

fn arrows(files: &[File]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        let Some((module, folder)) = module_of(&file.path) else {
            continue;
        };
        let row = |name: &str| ARROWS.iter().find(|(from, _)| *from == name);
        let Some((from, allowed)) = row(&module).or_else(|| row(&folder)) else {
            found.push(file.says(
                1,
                format!("`{folder}` has no row in ARROWS: say what it may use"),
            ));
            continue;
        };
        for (line, path) in paths(&file.code, "crate") {
            let names: Vec<&str> = path.split("::").collect();
            let is_module = |name: &str| name.starts_with(|c: char| c.is_lowercase());
            // A file of its own, or the folder.
            let target = match names[..] {
                [first, second, _, ..] if is_module(second) => format!("{first}::{second}"),
                [first, ..] => first.to_owned(),
                [] => continue,
            };
            let all_of = format!("{}::*", names[0]);
            let own = target == *from || (names[0] == folder && *from == folder);
            if own || allowed.iter().any(|to| **to == target || **to == all_of) {
                continue;
            }
            found.push(file.says(
                line,
                format!(
                    "`{module}` must not use `{target}`: arrows point down (DESIGN, layers). Move \
                     what is shared down, or pass it in; or argue for a row in ARROWS"
                ),
            ));
        }
        for (line, code) in file.code_lines() {
            if code.contains("super::super") {
                found.push(file.says(line, "`super::super` hides an arrow; say `crate::`"));
            }
        }
    }
    found
}

#[test]
fn import_arrows_point_down() {
    let bad = example(&[
        (
            "src/sched/mod.rs",
            "use crate::{sync::Mutex, config::Limits};",
        ),
        (
            "src/group/worker.rs",
            "fn f() { crate::os::poller::Poller::new() }",
        ),
        ("src/os/unix/x.rs", "use super::super::super::group::Group;"),
        ("src/server/registry.rs", "use crate::server::pool::Pool;"),
        ("src/lib.rs", "use crate::server::Server;"),
        ("src/newcomer.rs", ""),
    ]);
    let found = arrows(&bad);
    assert_eq!(found.len(), 5, "{found:#?}");
    assert!(found[0].contains("`sched` must not use `sync`"));
    assert!(found[3].contains("`server::registry` must not use `server::pool`"));
    report(arrows);
}

// ---- the pure folder ----

/// `src/sched` but for its walk, which prints and reads a seed.
fn is_pure(file: &File) -> bool {
    file.is_in("src/sched/") && file.is_rust() && !file.path.ends_with("/walk.rs")
}

fn purity(files: &[File]) -> Vec<String> {
    const IMPURE: [&str; 14] = [
        "Instant",
        "SystemTime",
        "Mutex",
        "RwLock",
        "Condvar",
        "thread",
        "thread_local",
        "Arc",
        "Cell",
        "RefCell",
        "parking_lot",
        "crossbeam",
        "mio",
        "rustix",
    ];
    // `io` for the kind of an error, which is a word.
    const STD: [&str; 8] = [
        "collections",
        "fmt",
        "iter",
        "mem",
        "cmp",
        "ops",
        "time::Duration",
        "io::ErrorKind",
    ];
    let mut found = Vec::new();
    for file in files.iter().filter(|file| is_pure(file)) {
        let why = "src/sched decides and does nothing: take time as `Nanos`, give back `Actions`";
        for (line, code) in file.code_lines() {
            for word in words(code) {
                if IMPURE.contains(&word) || word.starts_with("Atomic") {
                    found.push(file.says(line, format!("`{word}`: {why}")));
                }
            }
        }
        for (line, path) in paths(&file.code, "std") {
            let plain = |pure: &&str| path == **pure || path.starts_with(&format!("{pure}::"));
            if !STD.iter().any(plain) {
                found.push(file.says(line, format!("`std::{path}`: {why}")));
            }
        }
    }
    found
}

#[test]
fn the_scheduler_names_no_clock_lock_thread_or_atomic() {
    let bad = example(&[(
        "src/sched/x.rs",
        "use std::time::{Duration, Instant};\nuse std::sync::atomic::AtomicU64;\nfn f() { std::thread::yield_now() }\n// a Mutex\n",
    )]);
    let found = purity(&bad);
    assert_eq!(found.len(), 6, "{found:#?}");
    report(purity);
}

// ---- one spelling of locks ----

fn locks(files: &[File]) -> Vec<String> {
    const LOCKS: [&str; 8] = [
        "Mutex",
        "MutexGuard",
        "RwLock",
        "Condvar",
        "Barrier",
        "Once",
        "OnceLock",
        "mpsc",
    ];
    let mut found = Vec::new();
    for file in files {
        if !file.is_in("src/") || !file.is_rust() || file.path == "src/sync.rs" {
            continue;
        }
        let why = "locks come from `crate::sync`, so that loom can stand in for them";
        for (line, path) in paths(&file.code, "std") {
            if let Some(name) = path.strip_prefix("sync::")
                && LOCKS.contains(&name.split("::").next().unwrap_or(name))
            {
                found.push(file.says(line, format!("`std::{path}`: {why}")));
            }
        }
        for (line, _) in paths(&file.code, "parking_lot") {
            found.push(file.says(line, format!("`parking_lot`: {why}")));
        }
    }
    found
}

#[test]
fn locks_come_from_sync() {
    let bad = example(&[
        (
            "src/a.rs",
            "use std::sync::{Arc, Mutex};\nfn f(_: &parking_lot::RwLock<()>) {}",
        ),
        ("src/sync.rs", "use parking_lot::Mutex;"),
    ]);
    assert_eq!(locks(&bad).len(), 2, "{:#?}", locks(&bad));
    report(locks);
}

// ---- heads ----

fn heads(files: &[File]) -> Vec<String> {
    let headless = |file: &&File| {
        let first = file.text.lines().find(|line| !line.trim().is_empty());
        let is_head =
            |line: &str| line.starts_with("//!") || line.starts_with("#![doc = include_str!(");
        file.is_rust() && !first.is_some_and(is_head)
    };
    files
        .iter()
        .filter(headless)
        .map(|file| file.says(1, "say in a `//!` head what this file is for"))
        .collect()
}

#[test]
fn every_source_file_says_what_it_is_for() {
    let bad = example(&[("src/a.rs", "\nuse b;\n//! late"), ("src/c.rs", "//! C.\n")]);
    assert_eq!(heads(&bad).len(), 1);
    report(heads);
}

// ---- links and paths ----

/// Lines of prose: of a Markdown file all, of a Rust file the comments.
fn prose(file: &File) -> impl Iterator<Item = (usize, &str)> {
    let rust = file.is_rust();
    file.lines().filter_map(move |(n, line)| match rust {
        true => line.trim_start().strip_prefix("//").map(|text| (n, text)),
        false => Some((n, line)),
    })
}

/// The targets of Markdown links, but for those to the web, to a place in the same page, and to
/// names, which rustdoc checks.
fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("](").filter_map(|(at, _)| {
        let rest = &line[at + 2..];
        let target = &rest[..rest.find(')')?];
        let target = target.split('#').next().unwrap_or(target);
        let is_name = target.contains("::") || !target.contains(['/', '.']);
        (!is_name && !target.contains("://") && !target.starts_with("mailto:")).then_some(target)
    })
}

/// Paths in backticks that begin with a folder of this tree.
fn named_paths(line: &str) -> impl Iterator<Item = &str> {
    const FOLDERS: [&str; 7] = [
        "src/",
        "tests/",
        "benches/",
        "examples/",
        "fuzz/",
        ".ci/",
        ".cargo/",
    ];
    line.split('`').skip(1).step_by(2).filter(|quoted| {
        FOLDERS.iter().any(|folder| quoted.starts_with(folder))
            && quoted.chars().all(|c| is_word(c) || "/.-".contains(c))
    })
}

fn links(files: &[File], exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        let beside = Path::new(&file.path).parent().unwrap_or(Path::new(""));
        // A member of the workspace names its own folders.
        let member = beside
            .ancestors()
            .find(|folder| folder.parent() == Some(Path::new("examples")))
            .unwrap_or(beside);
        for (line, text) in prose(file) {
            for target in link_targets(text) {
                if !exists(&beside.join(target)) {
                    found
                        .push(file.says(line, format!("a link to `{target}`, which is not there")));
                }
            }
            for path in named_paths(text) {
                if !exists(Path::new(path)) && !exists(&member.join(path)) {
                    found.push(file.says(line, format!("`{path}` is not there; name what is")));
                }
            }
        }
    }
    found
}

#[test]
fn links_and_paths_in_prose_lead_somewhere() {
    let bad = example(&[
        (
            "README.md",
            "[a](gone.md) [b](here.md#x) [c](https://x.y/z) `src/gone.rs` `src/*.rs`",
        ),
        (
            "src/a.rs",
            "//! See [the note](README.md) and [`X`](crate::X), in `tests/gone.rs`.\nf(\"](no.md)\")",
        ),
    ]);
    let found = links(&bad, |path| path == Path::new("here.md"));
    assert_eq!(found.len(), 4, "{found:#?}");
    report(|files| links(files, |path| root().join(path).exists()));
}

// ---- code in prose ----

/// The blocks of Rust in a Markdown file, by their first lines, but for those that rustdoc compiles: of
/// the pages of the guide, all that are not to be ignored.
fn blocks(file: &File) -> Vec<(usize, String)> {
    let opens = |text: &str| {
        text.starts_with("```rust") && (!file.is_in("src/guide/") || text.contains("ignore"))
    };
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (line, text) in file.lines() {
        match &mut open {
            Some(_) if text == "```" => found.extend(open.take()),
            Some((_, block)) => {
                block.push_str(text);
                block.push('\n');
            }
            None if opens(text) => open = Some((line, String::new())),
            None => {}
        }
    }
    found
}

fn quotes(files: &[File]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| !file.is_rust()) {
        for (line, block) in blocks(file) {
            let built = |file: &&File| file.is_rust() && file.text.contains(&block);
            if !files.iter().any(|file| built(&file)) {
                found.push(file.says(
                    line,
                    "this code is in no Rust file; quote one that is built, as it stands",
                ));
            }
        }
    }
    found
}

#[test]
fn code_in_prose_is_code_that_is_built() {
    let bad = example(&[
        (
            "src/a.md",
            "```rust\nfn f() {\n    g();\n}\n```\n```rust,ignore\nfn f() {}\n```\n```text\nno\n```\n",
        ),
        ("src/a.rs", "//! A.\nfn f() {\n    g();\n}\n"),
    ]);
    assert_eq!(quotes(&bad).len(), 1, "{:#?}", quotes(&bad));
    report(quotes);
}

// ---- limits ----

/// A config struct, the names by which it is known where it is read, and where that is if its
/// field names are another's too.
const CONFIGS: [(&str, &[&str], &str); 3] = [
    ("PoolConfig", &["config", "pool"], ""),
    (
        "ThreadPerConnectionConfig",
        &["config"],
        "src/server/thread_per_connection.rs",
    ),
    ("Limits", &["limits", "limits()"], ""),
];

/// The public fields of the structs of a file: struct, line, field.
fn fields(file: &File) -> Vec<(&str, usize, &str)> {
    let mut found = Vec::new();
    let mut name = "";
    for (line, code) in file.code_lines() {
        let code = code.trim();
        if let Some(rest) = code.strip_prefix("pub struct ") {
            name = words(rest).next().unwrap_or("");
        } else if code == "}" {
            name = "";
        } else if !name.is_empty()
            && let Some((field, _)) = code.strip_prefix("pub ").and_then(|c| c.split_once(':'))
        {
            found.push((name, line, field));
        }
    }
    found
}

fn limits(files: &[File]) -> Vec<String> {
    let Some(config) = files.iter().find(|file| file.path == "src/config.rs") else {
        return vec!["src/config.rs is not there".into()];
    };
    let mut found = Vec::new();
    for (name, line, field) in fields(config) {
        let Some((_, receivers, only_in)) = CONFIGS.iter().find(|(n, ..)| *n == name) else {
            found.push(config.says(
                line,
                format!("`{name}` has no row in CONFIGS: say who reads it"),
            ));
            continue;
        };
        let elsewhere: Vec<&str> = CONFIGS
            .iter()
            .map(|(.., o)| *o)
            .filter(|o| o != only_in)
            .collect();
        let read = files.iter().any(|file| {
            file.is_in("src/")
                && file.path != config.path
                && (only_in.is_empty() || file.path == *only_in)
                && !elsewhere.contains(&file.path.as_str())
                && receivers
                    .iter()
                    .any(|receiver| reads(&file.code, receiver, field))
        });
        if !read {
            found.push(config.says(
                line,
                format!("nothing reads `{name}::{field}`; make it limit something, or take it out"),
            ));
        }
    }
    found
}

/// Whether `receiver.field` stands in the code, on one line or on two.
fn reads(code: &str, receiver: &str, field: &str) -> bool {
    code.match_indices(field).any(|(at, _)| {
        let after = &code[at + field.len()..];
        let Some(before) = code[..at].trim_end().strip_suffix('.') else {
            return false;
        };
        let before = before.trim_end();
        let written = after.trim_start().starts_with('=') && !after.trim_start().starts_with("==");
        let whole = before
            .strip_suffix(receiver)
            .is_some_and(|before| !before.ends_with(is_word));
        whole && !after.starts_with(is_word) && !written
    })
}

#[test]
fn no_limit_is_there_that_nothing_reads() {
    let bad = example(&[
        (
            "src/config.rs",
            "pub struct Limits {\n    pub max_input: usize,\n    pub dead: u8,\n    pub set: u8,\n}\npub struct New {\n    pub x: u8,\n}",
        ),
        (
            "src/a.rs",
            "fn f(limits: &mut Limits) { limits.max_input; limits.set = 1; // limits.dead\n}",
        ),
    ]);
    let found = limits(&bad);
    assert_eq!(found.len(), 3, "{found:#?}");
    report(limits);
}

// ---- names in prose ----

/// Names of four words or more in backticks: tests, most of them.
fn promises(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2).filter(|name| {
        name.chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
            && name.split('_').filter(|word| !word.is_empty()).count() >= 4
    })
}

fn names(files: &[File]) -> Vec<String> {
    let known: BTreeSet<&str> = files
        .iter()
        .filter(|file| file.is_rust())
        .flat_map(|file| file.text.lines())
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(words)
        .collect();
    let mut found = Vec::new();
    for file in files.iter().filter(|file| !file.is_rust()) {
        for (line, text) in file.lines() {
            for name in promises(text).filter(|name| !known.contains(name)) {
                found.push(file.says(
                    line,
                    format!(
                        "`{name}` is nowhere in the code: write that test, or name the one there is"
                    ),
                ));
            }
        }
    }
    found
}

#[test]
fn every_test_that_the_prose_names_exists() {
    let bad = example(&[
        (
            "src/sched/README.md",
            "| a race | `no_such_test_is_here` | `one_such_test_is` | `wait_begin` |",
        ),
        (
            "tests/a.rs",
            "#[test]\nfn one_such_test_is() {}\n// no_such_test_is_here",
        ),
    ]);
    assert_eq!(names(&bad).len(), 1, "{:#?}", names(&bad));
    report(names);
}

// ---- faults of others ----

/// The numbers of `tests/faults.md`, without those of MariaDB's reports, which have names.
const FAULTS: [(char, &[std::ops::RangeInclusive<u32>]); 3] = [
    (
        'A',
        &[
            1..=6,
            8..=24,
            26..=28,
            30..=35,
            37..=42,
            44..=55,
            57..=64,
            67..=67,
            69..=72,
        ],
    ),
    ('B', &[1..=9, 11..=16, 18..=24, 26..=26]),
    ('C', &[1..=8, 10..=13, 16..=40, 42..=45, 47..=47, 49..=53]),
];

const REPORTS: [&str; 43] = [
    "LP#909537",
    "LP#909774",
    "LP#909512",
    "LP#909414",
    "5.5.21 Windows",
    "5.5.23",
    "MDEV-208",
    "kevent",
    "BUG#14458232",
    "MDEV-156",
    "MDEV-4136",
    "MDEV-4566",
    "MDEV-5551",
    "MDEV-5533",
    "MDEV-6150",
    "MDEV-7588",
    "MDEV-7806",
    "MDEV-9836",
    "MDEV-10314",
    "MDEV-11083",
    "10.2.9",
    "PR#580",
    "MDEV-14781",
    "MDEV-19826",
    "MDEV-20206",
    "MDEV-21343",
    "MDEV-22696",
    "MDEV-23378",
    "MDEV-23224",
    "UBSan",
    "MDEV-26440",
    "MDEV-27943",
    "MDEV-28995",
    "MDEV-34437",
    "MDEV-35710",
    "MDEV-37860",
    "MDEV-37902",
    "MDEV-33070",
    "MDEV-38219",
    "MDEV-39011",
    "mariadb-docker#500",
    "PS-9452",
    "Meituan",
];

/// How many of them no test covers yet. Whoever covers one takes it down.
const NOT_COVERED: usize = 0;

fn faults(files: &[File]) -> Vec<String> {
    let Some(table) = files.iter().find(|file| file.path == "tests/faults.md") else {
        return vec!["tests/faults.md is not there".into()];
    };
    let mut missing: BTreeSet<String> = REPORTS.iter().map(|id| (*id).to_owned()).collect();
    for (part, ranges) in FAULTS {
        let numbers = ranges.iter().cloned().flatten();
        missing.extend(numbers.map(|n| format!("{part}{n}")));
    }
    let mut found = Vec::new();
    let mut not_covered = 0;
    for (line, text) in table.lines() {
        let cells: Vec<&str> = text.split(" | ").map(str::trim).collect();
        let [id, _, covered] = cells[..] else {
            continue;
        };
        let id = id.trim_start_matches("| ");
        if id == "number" {
            continue;
        }
        if !missing.remove(id) {
            found.push(table.says(line, format!("`{id}` is no fault, or is here twice")));
        }
        let open = covered.contains("not covered yet: ");
        not_covered += usize::from(open);
        let argued = covered.starts_with("cannot occur: ") || covered.starts_with("by design: ");
        if !open && !argued && promises(covered).next().is_none() {
            found.push(table.says(
                line,
                format!("`{id}`: name a test, or say why there is none"),
            ));
        }
    }
    let missing = missing.into_iter();
    found.extend(missing.map(|id| table.says(1, format!("the fault `{id}` is missing"))));
    if not_covered != NOT_COVERED {
        found.push(table.says(
            1,
            format!("{not_covered} are not covered, and NOT_COVERED is {NOT_COVERED}"),
        ));
    }
    found
}

#[test]
fn every_fault_of_others_is_covered_or_argued_for() {
    let bad = example(&[(
        "tests/faults.md",
        "| number | fault | found |\n|---|---|---|\n| A1 | x | `a_test_of_this_fault` |\n\
         | A1 | x | cannot occur: y |\n| A2 | x | hardly ever |\n| A3 | x | not covered yet: y |\n",
    )]);
    let found = faults(&bad);
    let says = |what: &str| found.iter().filter(|line| line.contains(what)).count();
    assert_eq!(
        (says("here twice"), says("name a test"), says("NOT_COVERED")),
        (1, 1, 1),
        "{found:#?}"
    );
    assert!(says("is missing") > 100);
    report(faults);
}

// ---- races and mutants ----

/// What the code leaves out on purpose, the table of races and the kernels name the same mutants.
fn mutants(files: &[File]) -> Vec<String> {
    let named = |path: &str| files.iter().find(|file| file.path == path);
    let (Some(note), Some(kernels)) = (
        named("src/sched/README.md"),
        named("src/group/loom_tests.rs"),
    ) else {
        return vec!["the design note or its kernels are not there".into()];
    };
    let guide = named("src/guide/verification.md");
    let mut races = Vec::new();
    let mut found = Vec::new();
    for (line, text) in note.lines() {
        let mut cells = text.trim_matches('|').split('|').map(str::trim);
        let Some(number) = cells.next().and_then(|cell| cell.parse::<usize>().ok()) else {
            continue;
        };
        let names: Vec<&str> = cells
            .rev()
            .take(2)
            .map(|cell| cell.trim_matches('`'))
            .collect();
        races.push(names[0]);
        if number != races.len() {
            found.push(note.says(line, format!("this race is number {}", races.len())));
        }
        let [mutant, kernel] = names[..] else {
            found.push(note.says(line, "name the kernel and its mutant"));
            continue;
        };
        let row = |text: &str| {
            text.contains(&format!("`{kernel}`")) && text.contains(&format!("`{mutant}`"))
        };
        if guide.is_some_and(|guide| !guide.lines().any(|(_, text)| row(text))) {
            found.push(note.says(line, "src/guide/verification.md has no row for this race"));
        }
        let squeezed: String = kernels.code.split_whitespace().collect();
        if !squeezed.contains(&format!("{mutant}in{kernel}:")) {
            found.push(note.says(line, format!("`mutants!` has no `{mutant} in {kernel}`")));
        }
    }
    for file in files
        .iter()
        .filter(|file| file.is_in("src/") && file.is_rust())
    {
        for (line, text) in file.lines() {
            for (_, rest) in text
                .match_indices("mutant::is(")
                .map(|(at, m)| text.split_at(at + m.len()))
            {
                let name = rest.split('"').nth(1).unwrap_or("");
                match races.iter().position(|race| *race == name) {
                    Some(at) => _ = races.remove(at),
                    None => found.push(file.says(
                        line,
                        format!("`{name}` is the mutant of no numbered race, or of two places"),
                    )),
                }
            }
        }
    }
    found.extend(
        races
            .iter()
            .map(|race| note.says(1, format!("no code has the mutant `{race}`"))),
    );
    found
}

#[test]
fn every_race_has_a_kernel_and_a_mutant() {
    let note = "| 1 | race | step | `kernel_a` | `mutant_a` |\n| 3 | race | step | `kernel_b` | `mutant_b` |";
    let bad = example(&[
        ("src/sched/README.md", note),
        (
            "src/group/loom_tests.rs",
            "mutants! {\n    mutant_a\n        in kernel_a: X;\n}",
        ),
        (
            "src/a.rs",
            "if mutant::is(\"mutant_a\") {}\nif mutant::is(\"mutant_c\") {}",
        ),
    ]);
    let found = mutants(&bad);
    assert_eq!(found.len(), 4, "{found:#?}");
    report(mutants);
}

// ---- memory orderings ----

const ORDERINGS: [&str; 5] = ["Relaxed", "Acquire", "Release", "AcqRel", "SeqCst"];

/// Plain statistics, of which the file's head or type says so.
const STATISTICS: [&str; 1] = ["src/server/registry.rs"];

/// Tests and models, in files of their own or below the line that begins them.
fn is_test_file(file: &File) -> bool {
    file.path.ends_with("_tests.rs") || file.path.ends_with("/walk.rs")
}

fn orderings(files: &[File]) -> Vec<String> {
    const NEAR: usize = 4;
    let argued: BTreeSet<&str> = files.iter().flat_map(argued_fields).collect();
    let mut found = Vec::new();
    for file in files
        .iter()
        .filter(|file| file.is_in("src/") && file.is_rust())
    {
        if STATISTICS.contains(&file.path.as_str()) || is_test_file(file) {
            continue;
        }
        let lines: Vec<&str> = file.text.lines().collect();
        for (line, code) in file.code_lines() {
            if code.contains("#[cfg(all(test") {
                break;
            }
            let names_one = words(code).any(|word| ORDERINGS.contains(&word));
            if !names_one || code.trim_start().starts_with("use ") {
                continue;
            }
            let near = &lines[line.saturating_sub(1 + NEAR)..line];
            let has_comment = near.iter().any(|line| line.contains("//"));
            let field = code
                .split(['.', '('])
                .map(str::trim)
                .rev()
                .find(|w| argued.contains(w));
            if !has_comment && field.is_none() {
                found.push(file.says(
                    line,
                    "a memory ordering without its argument: say in a comment above, or on the \
                     atomic's field, which edge it makes or why none is needed",
                ));
            }
        }
    }
    found
}

/// Atomics whose declaration, or the first of several in a row, has a comment that names an
/// ordering.
fn argued_fields(file: &File) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut argued, mut in_row) = (false, false);
    for (text, code) in file.text.lines().zip(file.code.lines()) {
        let atomic = code
            .split_once(": ")
            .filter(|(_, ty)| words(ty).any(|word| word.starts_with("Atomic")));
        if let Some((name, _)) = atomic {
            in_row = true;
            found.extend(words(name).last().filter(|_| argued));
            continue;
        }
        let comment = text.trim_start().starts_with("//");
        let names_one = comment && ORDERINGS.iter().any(|ordering| text.contains(ordering));
        argued = names_one || (argued && comment && !in_row);
        in_row = false;
    }
    found
}

#[test]
fn every_memory_ordering_is_argued_for() {
    let bad = example(&[(
        "src/a.rs",
        "use x::Relaxed;\nstruct S {\n    // Relaxed: a hint.\n    hint: AtomicBool,\n    plain: u8,\n    bare: AtomicBool,\n}\n\nfn f(s: &S) {\n    s.hint.load(Relaxed);\n    s.bare.load(Relaxed);\n\n\n\n    // Pairs with g.\n    s.bare.load(Acquire);\n}",
    )]);
    let found = orderings(&bad);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].starts_with("src/a.rs:11:"));
    report(orderings);
}

// ---- leftovers ----

fn leftovers(files: &[File]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.path != "tests/tidy.rs") {
        for (line, text) in file.lines() {
            for word in ["FIXME", "XXX"] {
                if words(text).any(|w| w == word) {
                    found.push(file.says(line, format!("a {word}: fix it, or open an issue")));
                }
            }
        }
        for (line, code) in file.code_lines() {
            for call in ["dbg!", "todo!", "unimplemented!"] {
                if code.contains(call) {
                    found.push(file.says(line, format!("a `{call}` was left behind")));
                }
            }
        }
    }
    found
}

#[test]
fn nothing_is_left_behind() {
    let bad = example(&[(
        "src/a.rs",
        "// FIXME: later\nfn f() { dbg!(1); todo!() }\n// not dbg!",
    )]);
    assert_eq!(leftovers(&bad).len(), 3);
    report(leftovers);
}

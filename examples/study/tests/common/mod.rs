//! Runs the tool.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

pub(crate) fn study(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_study"));
    command.args(args.split_whitespace()).stdin(Stdio::null());
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A folder of this test's own.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("study-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What was asked for is refused in one line that says `needle`.
pub(crate) fn refused(args: &str, needle: &str) {
    let output = study(args).output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args}: {stderr}");
    let complaints: Vec<_> = stderr
        .lines()
        .filter(|line| !line.contains("warning:"))
        .collect();
    assert!(
        complaints.len() == 1 && complaints[0].contains(needle),
        "{args}: {stderr}"
    );
    assert!(output.stdout.is_empty(), "{args}");
}

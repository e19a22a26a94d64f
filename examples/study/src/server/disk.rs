//! A server whose every command is a write of a block: `WRITE <n>`, from 1.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};

use sqlish::{Line, next_line};
use thread_group_pool::wait::{self, WaitKind};
use thread_group_pool::{Conn, Handler, Next};

use crate::disk::{self, BLOCK, Disk, Sync};
use crate::os;

#[derive(Debug)]
pub(super) struct DiskHandler {
    file: File,
    sync: Sync,
    hooks: bool,
}

thread_local! {
    /// Direct I/O wants its memory at a multiple of the block: room for one block, wherever it begins.
    static MEMORY: RefCell<Vec<u8>> = RefCell::new(vec![b'x'; 2 * BLOCK]);
}

impl DiskHandler {
    pub(super) fn new(disk: &Disk) -> io::Result<Self> {
        Ok(Self {
            file: disk::open(&disk.file, disk.sync)?,
            sync: disk.sync,
            hooks: disk.hooks,
        })
    }

    fn write(&self, block: u64) -> io::Result<()> {
        let write = || {
            MEMORY.with_borrow(|memory| {
                let from = memory.as_ptr().align_offset(BLOCK).min(BLOCK);
                let at = block.saturating_sub(1) * BLOCK as u64;
                os::write_at(&self.file, &memory[from..from + BLOCK], at)
            })?;
            match self.sync {
                Sync::Fsync => self.file.sync_data(),
                Sync::Direct => Ok(()),
            }
        };
        if self.hooks {
            wait::during(WaitKind::DiskIo, write)
        } else {
            write()
        }
    }
}

impl Handler for DiskHandler {
    type Session = ();

    fn open(&self, conn: &mut Conn) -> io::Result<()> {
        conn.logged_in()?;
        conn.write_all(b"READY\tdisk\n")
    }

    fn command(&self, _session: &mut (), conn: &mut Conn) -> io::Result<Next> {
        let (mut input, mut output) = conn.split();
        match next_line(input.buffered()) {
            Line::Complete { line, consumed } => {
                let block = std::str::from_utf8(line)
                    .ok()
                    .and_then(|line| line.strip_prefix("WRITE ")?.parse().ok());
                input.consume(consumed);
                match block.map(|block| self.write(block)) {
                    Some(Ok(())) => output.write_all(b"OK\n")?,
                    Some(Err(error)) => writeln!(output, "ERR\t1026\t{error}")?,
                    None => output.write_all(b"ERR\t1064\tWRITE and a number is all there is\n")?,
                }
                Ok(Next::input())
            }
            Line::Incomplete => Ok(Next::more_input()),
            Line::TooLong => Ok(Next::close()),
        }
    }
}

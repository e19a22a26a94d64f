//! The published table: MariaDB 5.5 on three machines, carried in `data/` with its source and
//! licence.

use crate::error::{Error, Result};

const CSV: &str = include_str!("../data/mariadb_5.5_threadpool_qps.csv");

/// One published value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published<'a> {
    /// In this tool's spelling.
    pub workload: &'a str,
    /// What its page calls the machine.
    pub machine: &'a str,
    /// How many cores that has.
    pub cores: u32,
    /// `pool` or `per-connection`.
    pub scheduler: &'a str,
    /// Clients.
    pub clients: usize,
    /// Statements per second (for OLTP: transactions).
    pub qps: u64,
}

/// All of it.
pub fn all() -> Result<Vec<Published<'static>>> {
    parse(CSV)
}

fn parse(csv: &str) -> Result<Vec<Published<'_>>> {
    let rows = csv
        .lines()
        .enumerate()
        .skip(1)
        .filter(|(_, line)| !line.trim().is_empty());
    rows.map(|(at, line)| {
        row(line).ok_or_else(|| {
            Error::run(format!(
                "line {} of the published table is not one: {line}",
                at + 1
            ))
        })
    })
    .collect()
}

fn row(line: &str) -> Option<Published<'_>> {
    let mut fields = line.split(',').map(str::trim);
    let mut next = || fields.next();
    let row = Published {
        workload: next()?,
        machine: next()?,
        cores: next()?.parse().ok()?,
        scheduler: next()?,
        clients: next()?.parse().ok()?,
        qps: next()?.parse().ok()?,
    };
    fields.next().is_none().then_some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_carried_is_complete() {
        let all = all().unwrap();
        // Four workloads, three machines, two schedulers, nine client counts.
        assert_eq!(all.len(), 4 * 3 * 2 * 9);
        let known = Published {
            workload: "point_select",
            machine: "pitbull",
            cores: 24,
            scheduler: "per-connection",
            clients: 4096,
            qps: 282,
        };
        assert!(all.contains(&known));
    }

    #[test]
    fn a_line_that_is_short_long_or_no_number_is_named() {
        for line in [
            "a,b,1,pool,16",
            "a,b,1,pool,16,5,6",
            "a,b,1,pool,x,5",
            "a,b,1,pool,16,",
        ] {
            let error = parse(&format!("head\n{line}")).unwrap_err().to_string();
            assert!(error.contains("line 2"), "{error}");
        }
    }
}

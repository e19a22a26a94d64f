#!/usr/bin/env python3
"""sysbench against sqlish, from prepare to cleanup: python3 benches/sysbench.py target/release/sqlish [seconds [threads]]

Under both schedulers, over TCP and a Unix socket, with prepared statements and without:

1. oltp_read_write with 1,024 threads for 30 s: no error but row locks that were waited for in vain and deadlocks,
   which sysbench answers with another try. Then the table has as many rows as before.
2. Without its delete and insert, which give a row another k, every transaction adds 1 to two rows: the sum of k has
   grown by as much as was committed.
3. All ten scripts, with 16 threads for a second each.

Each line ends in the bar. Exit code 1: one was not kept. Needs sysbench, mariadb and some 3,000 descriptors.
"""
import re, resource, subprocess, sys, tempfile

SQLISH = sys.argv[1]
SECONDS = int(sys.argv[2]) if len(sys.argv) > 2 else 30
THREADS = int(sys.argv[3]) if len(sys.argv) > 3 else 1024
ROWS = 100_000
SCRIPTS = """oltp_point_select oltp_read_only oltp_read_write oltp_write_only oltp_update_index oltp_update_non_index
             oltp_insert oltp_delete select_random_points select_random_ranges""".split()
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
failed = False


def report(what, kept):
    global failed
    failed |= not kept
    print(f"{what}: {'kept' if kept else 'NOT KEPT'}", flush=True)


def run(over, script, step, *options):
    """What sysbench says, and whether it ended well."""
    command = ["sysbench", script, "--mysql-user=root", "--mysql-ignore-errors=1205,1213", *over,
               f"--table-size={ROWS}", *options, step]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=120 + 4 * SECONDS)
    except subprocess.TimeoutExpired:
        return "it did not end", False
    if done.returncode:
        print(done.stdout[-2000:], file=sys.stderr)
    return done.stdout, done.returncode == 0


def number(said, label):
    found = re.search(re.escape(label) + r"\s+(\d+)", said)
    return int(found.group(1)) if found else None


def table(over):
    """Its rows, and the sum of k; 0 of both, if there is none."""
    at = [option.replace("--mysql-", "--") for option in over]
    said = subprocess.run(["mariadb", "--no-defaults", "--user=root", *at, "-N", "-B", "-e",
                           "SELECT COUNT(*), SUM(k) FROM sbtest1"], stdout=subprocess.PIPE, text=True, timeout=60)
    return tuple(int(n) for n in said.stdout.split()) or (0, 0)


def bars(scheduler, server, folder):
    port = None
    while port is None:
        line = server.stdout.readline()
        if not line:
            return report(f"{scheduler}: it listens", False)
        port = re.search(r"127\.0\.0\.1:(\d+)", line)
    ways = {"tcp": ["--mysql-host=127.0.0.1", f"--mysql-port={port.group(1)}"],
            "unix": [f"--mysql-socket={folder}/socket"]}
    for name, over in ways.items():
        for mode in "auto", "disable":
            case = f"{scheduler}, {name}, --db-ps-mode={mode}"
            options = [f"--threads={THREADS}", f"--time={SECONDS}", f"--db-ps-mode={mode}"]
            _, prepared = run(over, "oltp_read_write", "prepare")
            rows, _ = table(over)
            said, ran = run(over, "oltp_read_write", "run", *options)
            again, reconnects = number(said, "ignored errors:"), number(said, "reconnects:")
            left, _ = table(over)
            report(f"{case}: {number(said, 'transactions:') or 0:,} transactions in {SECONDS} s, {again} begun again, "
                   f"{left:,} of {rows:,} rows", prepared and ran and reconnects == 0 and left == rows > 0)
            options[1] = f"--time={max(1, SECONDS // 10)}"
            _, before = table(over)
            said, ran = run(over, "oltp_read_write", "run", *options, "--index-updates=2", "--delete-inserts=0")
            added, committed = table(over)[1] - before, number(said, "transactions:") or 0
            report(f"{case}: {committed:,} transactions added {added:,}", ran and added == 2 * committed > 0)
            _, cleaned = run(over, "oltp_read_write", "cleanup")
            report(f"{case}: cleanup", cleaned)
    for at, script in enumerate(SCRIPTS):
        name = list(ways)[at % 2]
        steps = [run(ways[name], script, step, "--threads=16", "--time=1") for step in ("prepare", "run", "cleanup")]
        events = number(steps[1][0], "total number of events:") or 0
        report(f"{scheduler}, {name}, {script}: {events:,} in a second", events > 0 and all(fine for _, fine in steps))
    server.terminate()
    try:
        report(f"{scheduler}: drained", server.wait(timeout=30) == 0)
    except subprocess.TimeoutExpired:
        report(f"{scheduler}: drained", False)


for scheduler in "pool", "per-connection":
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [SQLISH, "serve", "--tables", "0", "--scheduler", scheduler, "--mysql-tcp", "127.0.0.1:0",
             "--mysql-unix", f"{folder}/socket"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            bars(scheduler, server, folder)
        finally:
            server.kill()
            server.wait()
sys.exit(failed)

#!/usr/bin/env python3
"""Measures the way from accept to login: python3 benches/admission.py target/release/sqlish

1. A thousand sockets that stop after each step of a login: how long a new client takes, and threads.
2. Every worker waits for one row at the cap: how long SHOW and KILL take by the admin listener.
3. Out of descriptors: the CPU of the accept thread, and how soon accepting goes on.
4. A full house of one session: ten thousand clients, one after the other.
"""
import os, re, resource, socket, subprocess, sys, time

SQLISH = sys.argv[1]
SECRET = "open-sesame"
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


class Client:
    def __init__(self, at):
        self.socket = socket.create_connection(at)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rwb")
        self.id = None

    def greeted(self):
        line = self.file.readline().decode()
        if not line.startswith("READY"):
            raise EOFError(line)
        self.id = line.split("\t")[1]
        return self

    def ask(self, line):
        self.file.write(line.encode() + b"\n")
        self.file.flush()
        rows = []
        while True:
            row = self.file.readline().decode()
            if not row:
                raise EOFError
            if not row.startswith("ROW"):
                return rows, row.rstrip()
            rows.append(row)

    def login(self):
        import hashlib, hmac
        rows, _ = self.ask("LOGIN ann")
        nonce = rows[0].rstrip().split("\t")[2]
        answer = hmac.new(SECRET.encode(), nonce.encode(), hashlib.sha256).hexdigest()
        assert self.ask("ANSWER " + answer)[1] == "OK"
        return self

    def close(self):
        self.file.close()
        self.socket.close()


class Server:
    def __init__(self, *options):
        self.process = subprocess.Popen(
            [SQLISH, "serve", "--rows", "1000", "--tcp", "127.0.0.1:0", *options],
            stdout=subprocess.PIPE, text=True)
        self.at = self.address()
        self.admin_at = self.address() if "--admin-tcp" in options else None
        self.pid = self.process.pid

    def address(self):
        line = self.process.stdout.readline()
        host, port = line.split()[-1].rsplit(":", 1)
        return host, int(port)

    def threads(self):
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def cpu(self, name):
        """Seconds of CPU of the thread of this name."""
        for task in os.listdir(f"/proc/{self.pid}/task"):
            stat = open(f"/proc/{self.pid}/task/{task}/stat").read()
            if f"({name})" in stat:
                fields = stat.rsplit(")", 1)[1].split()
                return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        raise KeyError(name)

    def end(self):
        self.process.terminate()
        assert self.process.wait() == 0


def ms(seconds):
    return f"{1000 * seconds:.2f} ms"


def strangers(scheduler):
    server = Server("--scheduler", scheduler, "--require-login", SECRET, "--connect-timeout", "1000")

    def new_client():
        begun = time.monotonic()
        client = Client(server.at).greeted().login()
        assert client.ask("PING")[1] == "OK"
        took = time.monotonic() - begun
        client.close()
        return took

    import threading
    crowd = [threading.Thread(target=lambda: [new_client() for _ in range(100)]) for _ in range(8)]
    [t.start() for t in crowd]
    [t.join() for t in crowd]
    before = server.threads()
    print(f"  {scheduler}: nobody else: {ms(max(new_client() for _ in range(20)))} (worst of 20), {before} threads")
    kept = []
    for step in ["connect", "greeting", "half a login line", "login challenge"]:
        for _ in range(1000):
            client = Client(server.at)
            if step != "connect":
                client.greeted()
            if step == "half a login line":
                client.socket.sendall(b"LOG")
            if step == "login challenge":
                client.ask("LOGIN ann")
            kept.append(client)
        first = new_client()
        worst = max(new_client() for _ in range(20))
        print(f"  {scheduler}: 1000 more after {step}: first {ms(first)}, worst of 20 {ms(worst)}, {server.threads()} threads")
    for client in kept:
        client.close()
    server.end()


def admin(scheduler, *options):
    server = Server("--scheduler", scheduler, "--admin-tcp", "127.0.0.1:0", "--lock-wait-timeout", "1000", *options)
    update = "UPDATE sbtest1 SET k=k+1 WHERE id=1"
    holder = Client(server.at).greeted()
    holder.ask("BEGIN")
    holder.ask(update)
    waiting = []
    for _ in range(100):
        client = Client(server.at)
        client.socket.sendall(update.encode() + b"\n")
        waiting.append(client)
    time.sleep(1)
    begun = time.monotonic()
    boss = Client(server.admin_at).greeted()
    login = time.monotonic() - begun
    begun = time.monotonic()
    boss.ask("SHOW PROCESSLIST")
    show = time.monotonic() - begun
    begun = time.monotonic()
    assert boss.ask(f"KILL {holder.id}")[1] == "OK"
    kill = time.monotonic() - begun
    for client in waiting:
        client.greeted()
        assert client.file.readline() == b"OK\t1\n"
    recovered = time.monotonic() - begun
    print(f"  {scheduler} {' '.join(options)}: connect {ms(login)}, SHOW {ms(show)}, KILL {ms(kill)}, all 100 waiters done {ms(recovered)} after it")
    for client in waiting + [boss]:
        client.close()
    server.end()


def descriptors(scheduler):
    server = Server("--scheduler", scheduler)
    clients = [Client(server.at).greeted() for _ in range(20)]
    in_use = len(os.listdir(f"/proc/{server.pid}/fd"))
    hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (in_use, hard))
    outside = [Client(server.at) for _ in range(50)]
    time.sleep(0.2)
    cpu, begun = server.cpu("tgp-accept"), time.monotonic()
    asked = 0
    while time.monotonic() - begun < 10:
        for client in clients:
            assert client.ask("PING")[1] == "OK"
            asked += 1
        time.sleep(0.01)
    share = (server.cpu("tgp-accept") - cpu) / (time.monotonic() - begun)
    print(f"  {scheduler}: 50 wait outside for 10 s: accept thread {100 * share:.2f} % CPU, {asked} commands of 20 others answered")
    by_close = []
    for client, next_one in zip(clients[:10], outside):
        begun = time.monotonic()
        client.close()
        next_one.greeted()
        by_close.append(time.monotonic() - begun)
    print(f"  {scheduler}: accepted after a connection closed: worst of 10 {ms(max(by_close))}")
    by_limit = []
    for n, next_one in enumerate(outside[10:20]):
        time.sleep(0.3)
        begun = time.monotonic()
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (in_use + 1 + n, hard))
        next_one.greeted()
        by_limit.append(time.monotonic() - begun)
    print(f"  {scheduler}: accepted after the limit was raised by one: worst of 10 {ms(max(by_limit))}")
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (hard, hard))
    for client in outside[20:]:
        client.greeted()
    for client in clients[10:] + outside:
        client.close()
    server.end()


def full_house(scheduler):
    server = Server("--scheduler", scheduler, "--max-connections", "1", "--max-logins", "1")
    begun, refused = time.monotonic(), 0
    for _ in range(10_000):
        while True:
            try:
                client = Client(server.at).greeted()
                break
            except (EOFError, ConnectionError):
                refused += 1
        client.ask("QUIT")
        client.close()
    took = time.monotonic() - begun
    print(f"  {scheduler}: 10000 clients in {took:.1f} s, {refused} times too early")
    server.end()


SCHEDULERS = ["pool", "per-connection"]
print("1. strangers")
for name in SCHEDULERS:
    strangers(name)
print("2. every worker blocked")
admin("pool", "--groups", "2", "--thread-pool-max-threads", "4")
admin("pool", "--groups", "4", "--thread-pool-max-threads", "64")
admin("per-connection", "--max-threads", "101", "--thread-cache-size", "0")
print("3. no descriptors")
for name in SCHEDULERS:
    descriptors(name)
print("4. full house")
for name in SCHEDULERS:
    full_house(name)

#!/usr/bin/env python3
"""Measures what peers cost their neighbours: python3 benches/peers.py target/release/examples/replies [NUMBER...]

1. As many slow readers as threads may be, and one, each owed 100 MB: threads used for them, and the p99 of others.
2. Clients that pipeline 10 MB of commands before they read: replies, and the p99 of others.
3. A cursor of 1 GB, read at 10 MB/s for twenty seconds and then as fast as it goes: memory, and threads held.
4. A drain with 1,000 clients of all kinds: whether each time was kept and each client is accounted for.

Each line ends in the bar; nothing here is random. Under two minutes each, on loopback.
"""
import multiprocessing, re, resource, select, socket, subprocess, sys, threading, time

SERVER = sys.argv[1]
WHICH = [int(n) for n in sys.argv[2:]] or [1, 2, 3, 4]
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
MB = 1_000_000


class Server:
    def __init__(self, *options):
        self.name = " ".join(options) or "pool"
        self.process = subprocess.Popen(
            [SERVER, *options, "127.0.0.1:0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        host, port = self.process.stdout.readline().split(";")[0].split()[-1].rsplit(":", 1)
        self.at = host, int(port)

    def connect(self):
        client = socket.create_connection(self.at)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client

    def threads(self):
        """Threads, how many of them are at something, and the most that there have been; of the pool."""
        with self.connect() as client:
            return [int(n) for n in ask(client, b"THREADS").split()]

    def memory(self, field):
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024

    def drain(self):
        begun = time.monotonic()
        report = self.process.communicate("\n", timeout=60)[0].strip()
        return report, time.monotonic() - begun


def ask(client, line):
    client.sendall(line + b"\n")
    reply = b""
    while not reply.endswith(b"\n"):
        got = client.recv(65536)
        if not got:
            raise EOFError
        reply += got
    return reply


def neighbours(at, seconds, clients, result):
    """A process of its own: so many clients in a loop; the p99 in ms."""
    sockets = [socket.create_connection(at) for _ in range(clients)]
    poll, since, took = select.epoll(), {}, []
    by_number = {one.fileno(): one for one in sockets}
    for one in sockets:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(one, select.EPOLLIN)
        since[one.fileno()] = time.monotonic()
        one.sendall(b"ECHO hello\n")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for number, _ in poll.poll(1):
            one = by_number[number]
            assert one.recv(100) == b"hello\n"
            now = time.monotonic()
            took.append(now - since[number])
            since[number] = now
            one.sendall(b"ECHO hello\n")
    took.sort()
    result.send((1000 * took[len(took) * 99 // 100], len(took) / seconds))


def p99(server, seconds=5, clients=16):
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=neighbours, args=(server.at, seconds, clients, theirs))
    process.start()
    figures = ours.recv()
    process.join()
    return figures


def verdict(alone, beside):
    return f"bar {max(2 * alone, alone + 5):.2f} ms: {'kept' if beside <= max(2 * alone, alone + 5) else 'NOT KEPT'}"


def until(what, holds, patience=60):
    end = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def slow_readers(how, *options):
    server = Server(*options)
    alone, rate = p99(server)
    readers = [server.connect() for _ in range(9)]
    for reader in readers:
        reader.sendall(f"{how} {100 * MB}\n".encode())
    stop, taken = threading.Event(), [0] * len(readers)

    def read():
        while not stop.wait(0.05):
            for n, reader in enumerate(readers):
                taken[n] += len(reader.recv(65536))

    reading = threading.Thread(target=read)
    reading.start()
    until("all are served", lambda: min(taken) > 0)
    time.sleep(1)
    pool = not options
    most = max(server.threads()[1] - 1 for _ in range(50)) if pool else None
    beside, rate_beside = p99(server)
    threads = f"{most} threads at most used for them (bar 2: {'kept' if most <= 2 else 'NOT KEPT'})" if pool else "a thread each"
    stop.set()
    reading.join()
    print(f"  {server.name}, {how}: {threads}; p99 of 16 others {alone:.2f} ms alone ({rate:.0f}/s), {beside:.2f} ms beside "
          f"({rate_beside:.0f}/s); {verdict(alone, beside)}; {server.memory('VmRSS'):.0f} MiB resident", flush=True)
    server.process.kill()


def pipelines(*options):
    server = Server(*options)
    alone, rate = p99(server)
    commands = (b"ECHO " + b"x" * 995 + b"\n") * 10_000
    replies = 10_000 * 996
    stop, done, closed, broken = threading.Event(), [], [], []

    def pipeline():
        while not stop.is_set():
            with server.connect() as client:
                got = 0
                try:
                    client.sendall(commands)
                    while got < replies and (n := len(client.recv(1 << 20))):
                        got += n
                    (done if got == replies else closed).append(got)
                except ConnectionError:
                    broken.append(got)

    working = threading.Thread(target=pipeline)
    working.start()
    beside, rate_beside = p99(server)
    stop.set()
    working.join()
    print(f"  {server.name}: {len(done)} pipelines of 10 MB got all replies, {len(closed)} a clean close, {len(broken)} another end "
          f"(bar 0: {'NOT KEPT' if broken else 'kept'}); p99 of 16 others {alone:.2f} ms "
          f"alone ({rate:.0f}/s), {beside:.2f} ms beside ({rate_beside:.0f}/s); {verdict(alone, beside)}", flush=True)
    server.process.kill()


def cursor(*options):
    size = 1000 * MB
    server = Server(*options)
    client = server.connect()
    ask(client, b"ECHO first")
    before = server.memory("VmHWM")
    client.sendall(f"STREAM {size}\n".encode())
    begun, got, busy = time.monotonic(), 0, []
    while got < 200 * MB:
        time.sleep(max(0, got / (10 * MB) - (time.monotonic() - begun)))
        got += len(client.recv(100_000))
        if not options and len(busy) < got // (2 * MB):
            busy.append(server.threads()[1] - 1)
    while got < size + 1:
        got += len(client.recv(1 << 20))
    grown = server.memory("VmHWM") - before
    looks = sum(threads > 0 for threads in busy)
    # Between two pieces nothing is held; a look may find one that is being made.
    held = (f"; {looks} of {len(busy)} looks found a thread at it, bar less than half: "
            f"{'kept' if 2 * looks < len(busy) else 'NOT KEPT'}") if busy else ""
    print(f"  {server.name}: {got / MB:.0f} MB came in {time.monotonic() - begun:.0f} s; {grown:.2f} MiB more memory at most, "
          f"bar 4 MiB: {'kept' if grown < 4 else 'NOT KEPT'}{held}", flush=True)
    server.process.kill()


def drain(*options):
    server = Server(*options)
    clients = []

    def some(n, *lines, answered=True):
        for _ in range(n):
            client = server.connect()
            for line in lines[:-1]:
                ask(client, line)
            if answered:
                ask(client, lines[-1])
            else:
                client.sendall(lines[-1] + b"\n")
            clients.append(client)

    some(400, b"ECHO idle")
    some(100, b"BEGIN")
    finishing = len(clients)
    some(100, b"BEGIN")
    some(100, b"ECHO before", b"SLEEP 500", answered=False)
    some(99, b"ECHO before", b"SLEEP 300000", answered=False)
    some(100, b"ECHO before", b"BIG 5000000", answered=False)
    some(100, b"ECHO before", b"STREAM 5000000", answered=False)
    some(1, b"ECHO before", b"HANG", answered=False)
    time.sleep(1)

    def commit():
        time.sleep(1.5)
        for client in clients[finishing:finishing + 100]:
            try:
                ask(client, b"COMMIT")
            except (EOFError, ConnectionError):
                pass

    committing = threading.Thread(target=commit)
    committing.start()
    report, took = server.drain()
    committing.join()
    counted = sum(int(n) for n in re.findall(r"(\d+) (?:idle|finished|left|killed|abandoned)", report.splitlines()[0]))
    print(f"  {server.name}: {len(clients)} clients; {report!r}; {counted} accounted for: {'all' if counted == len(clients) else 'NOT ALL'}; "
          f"{took:.2f} s, bar 1 + 1 + 1 + 1 + 1 s of its stages: {'kept' if took < 5.5 else 'NOT KEPT'}", flush=True)


BOTH = [(), ("--per-connection",)]
if 1 in WHICH:
    print("1. slow readers")
    for how in ["STREAM", "BIG"]:
        slow_readers(how)
    slow_readers("STREAM", "--per-connection")
if 2 in WHICH:
    print("2. pipelines")
    for options in BOTH:
        pipelines(*options)
if 3 in WHICH:
    print("3. a cursor")
    for options in BOTH:
        cursor(*options)
if 4 in WHICH:
    print("4. a drain")
    for options in BOTH:
        drain(*options)

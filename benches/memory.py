#!/usr/bin/env python3
"""Measures what connections take: python3 benches/memory.py target/release/sqlish [target/release/examples/tls_echo]

1. 4,096 clients that have not logged in, each announcing a command of 16 MiB: resident memory, with nothing behind
   the announcement, with half of what a stranger may send, and with nearly all of it. Text and MySQL's protocol.
2. 1,000 peers that fall silent in the middle of a TLS handshake: threads, their CPU, and how long another client
   takes from connecting to its first answer.
3. Idle connections in the pool: memory of the process, as the slope from 1,000 to 19,000 of them. Each has run a
   statement. Needs 20,000 descriptors (ulimit -Hn). Alone, if there is no second argument.

Each line ends in the bar, where there is one.
"""
import os, resource, socket, ssl, subprocess, sys, tempfile, time

SQLISH, TLS_ECHO = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
ANNOUNCED = 16 * 1024 * 1024 - 1


def status(pid, field):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith(field + ":"):
            return int(line.split()[1])


def cpu(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def address(process):
    host, port = process.stdout.readline().split(";")[0].split()[-1].rsplit(":", 1)
    return host, int(port)


def bar(text, kept):
    return f"bar {text}: {'kept' if kept else 'NOT KEPT'}"


def settled(pid):
    """Waits until the server has done nothing for half a second."""
    before = None
    while before != (now := cpu(pid)):
        before = now
        time.sleep(0.5)


def announcements(scheduler, protocol, behind, clients=4096):
    listen = ["--mysql-tcp" if protocol == "mysql" else "--tcp", "127.0.0.1:0"]
    login = ["--user", "ann:open-sesame"] if protocol == "mysql" else ["--require-login", "open-sesame"]
    server = subprocess.Popen(
        [SQLISH, "serve", "--rows", "1", "--scheduler", scheduler, "--connect-timeout", "1000", *listen, *login],
        stdout=subprocess.PIPE, text=True)
    at = address(server)
    settled(server.pid)
    before = status(server.pid, "VmRSS")
    head = ANNOUNCED.to_bytes(3, "little") + b"\1" if protocol == "mysql" else b"LOGIN "
    all_of_them = []
    for _ in range(clients):
        client = socket.create_connection(at)
        client.recv(1000)
        client.sendall(head + b"x" * behind)
        all_of_them.append(client)
    settled(server.pid)
    grown = (status(server.pid, "VmRSS") - before) / 1024
    closed = 0
    for client in all_of_them:
        client.setblocking(False)
        try:
            closed += 1 if len(client.recv(1000)) >= 0 else 0
        except BlockingIOError:
            pass
        except ConnectionResetError:
            closed += 1
    print(f"  {scheduler}, {protocol}: {clients} clients, {behind} bytes behind the announcement: "
          f"{grown:.0f} MiB more, {status(server.pid, 'Threads')} threads, {closed} of them answered or closed; "
          f"{bar('300 MiB', grown < 300)}", flush=True)
    for client in all_of_them:
        client.close()
    server.terminate()
    server.wait()


def silent_handshakes(*options, peers=1000):
    server = subprocess.Popen([TLS_ECHO, *options, "127.0.0.1:0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    at = address(server)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def first_answer():
        begun = time.monotonic()
        client = context.wrap_socket(socket.create_connection(at))
        client.sendall(b"hello\n")
        assert client.recv(100) == b"hello\n"
        took = time.monotonic() - begun
        client.close()
        return took

    def worst():
        return 1000 * max(first_answer() for _ in range(50))

    alone, threads = worst(), status(server.pid, "Threads")
    # Ten seconds are the time for a login: all of this is to be within it.
    silent, begun = [], time.monotonic()
    for n in range(peers):
        hello = ssl.MemoryBIO()
        tls = context.wrap_bio(ssl.MemoryBIO(), hello)
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        hello = hello.read()
        peer = socket.create_connection(at)
        # Half a hello; or all of it, and no word after the server's answer.
        peer.sendall(hello if n % 2 else hello[:len(hello) // 2])
        silent.append(peer)
    came = time.monotonic() - begun
    beside, busy = worst(), cpu(server.pid)
    time.sleep(2)
    with_them = status(server.pid, "Threads")
    # Whoever has a thread each has no workers to hold.
    verdict = "a thread each" if options else bar("no thread more", with_them <= threads)
    print(f"  {' '.join(options) or 'pool'}: worst of 50 first answers {alone:.1f} ms alone, {beside:.1f} ms beside {peers} "
          f"silent handshakes (which came in {came:.1f} s); {threads} threads before, {with_them} with them; "
          f"{cpu(server.pid) - busy:.2f} s of CPU in 2 s of silence; {verdict}", flush=True)
    for peer in silent:
        peer.close()
    server.communicate("\n")


def idle(transport, few=1_000, many=19_000):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "socket")
        listen = ["--unix", path] if transport == "unix" else ["--tcp", "127.0.0.1:0"]
        server = subprocess.Popen([SQLISH, "serve", "--rows", "1", *listen], stdout=subprocess.PIPE, text=True)
        if transport == "unix":
            server.stdout.readline()
        at = path if transport == "unix" else address(server)
        clients, taken = [], []
        for number in [few, many]:
            while len(clients) < number:
                client = socket.socket(socket.AF_UNIX if transport == "unix" else socket.AF_INET)
                client.connect(at)
                client.recv(1000)
                client.sendall(b"SELECT c FROM sbtest1 WHERE id=1\n")
                client.recv(1000)
                clients.append(client)
            settled(server.pid)
            taken.append(status(server.pid, "RssAnon") * 1024)
        print(f"  {transport}: {(taken[1] - taken[0]) / (many - few):.0f} bytes for each, "
              f"{taken[1] / 2**20:.1f} MiB with {many} (bar: under 1024 bytes)", flush=True)
        for client in clients:
            client.close()
        server.terminate()
        server.wait()


if __name__ == "__main__":
    if TLS_ECHO:
        print("1. announcements")
        for scheduler in ["pool", "per-connection"]:
            for protocol in ["text", "mysql"]:
                for behind in [0, 30_000, 60_000]:
                    announcements(scheduler, protocol, behind)
        print("2. silent handshakes")
        silent_handshakes()
        silent_handshakes("--per-connection")
    print("3. idle connections in the pool")
    for transport in ["unix", "tcp"]:
        idle(transport)

"""The Python peers, in the words of ../../README.md: IMPL ADDR WORKLOAD key=value..."""

import json
import os
import random
import sys
import threading
import time


def redis_client(addr, sleep):
    import redis

    host, port = addr.split(":")
    client = redis.Redis(host=host, port=int(port))

    def lock(name):
        taken = client.lock(name, timeout=30, sleep=sleep, thread_local=False)
        taken.acquire()
        return taken.release

    return lock


def kazoo_client(addr):
    from kazoo.client import KazooClient

    client = KazooClient(hosts=addr)
    client.start()

    def lock(name):
        taken = client.Lock("/" + name)
        taken.acquire()
        return taken.release

    return lock


def connect(name, addr):
    if name == "kazoo-lock":
        return kazoo_client(addr)
    # The default looks again every 100 ms.
    return redis_client(addr, {"redis-py": 0.1, "redis-py-fast": 0.001}[name])


def say(**words):
    print(json.dumps(words), flush=True)


def at(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0


def together(count, work):
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(lock, threads, secs, names, tag, hold):
    end = time.monotonic() + secs
    tallies = [([], []) for _ in range(threads)]

    def work(i):
        waits, errors = tallies[i]
        while (called := time.monotonic()) < end:
            if names == "own":
                name = f"{tag}-{os.getpid()}-{i}"
            elif names == "one":
                name = f"{tag}-one"
            else:
                name = f"{tag}-n{random.randrange(int(names))}"
            try:
                free = lock(name)
                waited = time.monotonic() - called
                if hold:
                    time.sleep(hold)
                free()
                waits.append(int(waited * 1e6))
            except Exception as error:
                errors.append(repr(error))
                time.sleep(0.01)

    together(threads, work)
    return tallies


def pair(name, lock, p):
    threads, tag = int(p.get("threads", 1)), p.get("tag", "bench")
    measure(lock, threads, float(p.get("warm", 1)), "own", tag + "-warm", 0)
    say(event="ready")
    sys.stdin.readline()
    started = time.monotonic()
    tallies = measure(lock, threads, float(p.get("secs", 3)), p.get("names", "own"), tag, int(p.get("hold_us", 0)) / 1e6)
    secs = time.monotonic() - started
    waits = [wait for tally in tallies for wait in tally[0]]
    errors = [error for tally in tallies for error in tally[1]]
    each = [len(tally[0]) for tally in tallies]
    say(event="result", impl=name, cycles=len(waits), secs=secs, per_worker_min=min(each), per_worker_max=max(each),
        p50_us=at(waits, 0.5), p90_us=at(waits, 0.9), p99_us=at(waits, 0.99), max_us=max(waits, default=0),
        errors=len(errors), first_error=errors[0] if errors else None)


def idle(name, lock, p):
    waiters, target, done = int(p.get("waiters", 100)), p.get("tag", "bench") + "-idle", []
    holder = lock(target)
    waiting = threading.Thread(target=together, args=(waiters, lambda _: (lock(target)(), done.append(1))))
    waiting.start()
    time.sleep(3)
    say(event="ready")
    time.sleep(float(p.get("secs", 5)))
    say(event="done")
    started = time.monotonic()
    holder()
    waiting.join()
    say(event="result", impl=name, drain_secs=time.monotonic() - started, acquired=len(done), errors=waiters - len(done))


def hold(name, lock, p):
    locks, tag, started = int(p.get("locks", 1000)), p.get("tag", "bench"), time.monotonic()
    held = [lock(f"{tag}-hold-{i}") for i in range(locks)]
    took, still = time.monotonic() - started, 0
    say(event="ready")
    time.sleep(float(p.get("secs", 5)))
    say(event="done")
    for free in held:
        try:
            free()
            still += 1
        except Exception:
            pass
    say(event="result", impl=name, held=still, acquire_secs=took)


def pingpong(name, lock, other, p):
    sides, target = [lock, other], p.get("tag", "bench") + "-pingpong"
    settle, end = float(p.get("settle_us", 5000)) / 1e6, time.monotonic() + float(p.get("secs", 3))
    free, taken, turn = sides[0](target), [], 0
    say(event="ready")
    while time.monotonic() < end:
        turn, got, calling = 1 - turn, [], threading.Event()

        def wait():
            calling.set()
            released = sides[turn](target)
            got.append((released, time.monotonic()))

        waiter = threading.Thread(target=wait)
        waiter.start()
        calling.wait()
        time.sleep(settle + random.random() * float(p.get("jitter_us", 0)) / 1e6)
        began = time.monotonic()
        free()
        waiter.join()
        free = got[0][0]
        taken.append(int((got[0][1] - began) * 1e6))
    free()
    say(event="result", impl=name, cycles=len(taken), p50_us=at(taken, 0.5), p99_us=at(taken, 0.99), max_us=max(taken, default=0))


def proof(name, lock, p):
    threads, rounds, path = int(p.get("threads", 4)), int(p.get("rounds", 20)), p["file"]
    say(event="ready")
    sys.stdin.readline()

    def work(_):
        for _ in range(rounds):
            free = lock(p.get("tag", "bench") + "-proof")
            with open(path) as file:
                number = int(file.read())
            with open(path, "w") as file:
                file.write(str(number + 1))
            free()

    together(threads, work)
    say(event="result", impl=name, added=threads * rounds)


def main():
    name, addr, workload = sys.argv[1:4]
    p = dict(word.split("=", 1) for word in sys.argv[4:])
    lock = connect(name, addr)
    if workload == "pingpong":
        pingpong(name, lock, connect(name, addr), p)
    else:
        {"pair": pair, "idle": idle, "hold": hold, "proof": proof}[workload](name, lock, p)
    sys.stdout.flush()
    # Threads of the libraries may still be there.
    os._exit(0)


main()

// The Node peer, in the words of ../../README.md: IMPL ADDR WORKLOAD key=value...

import Redis from "ioredis";
import { readFileSync, writeFileSync, writeSync } from "node:fs";
import { createInterface } from "node:readline";
import { createRequire } from "node:module";

// The package's own module form does not load everywhere.
const redlock = createRequire(import.meta.url)("redlock");
const Redlock = redlock.default ?? redlock;

const [name, addr, workload, ...words] = process.argv.slice(2);
const p = Object.fromEntries(words.map((word) => word.split(/=(.*)/s).slice(0, 2)));
const number = (key, usual) => (key in p ? Number(p[key]) : usual);
const text = (key, usual) => p[key] ?? usual;
const tag = text("tag", "bench");
const say = (object) => writeSync(1, JSON.stringify(object) + "\n");
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const now = () => Number(process.hrtime.bigint() / 1000n);

function connect() {
  const [host, port] = addr.split(":");
  const settings = { retryCount: -1 };
  // The default looks again after 200 ms.
  if (name === "node-redlock-fast") Object.assign(settings, { retryDelay: 1, retryJitter: 1 });
  const locks = new Redlock([new Redis({ host, port: Number(port) })], settings);
  return async (lock) => {
    const held = await locks.acquire([lock], 30000);
    return () => held.release();
  };
}

const line = () => new Promise((done) => createInterface({ input: process.stdin }).once("line", done));
const at = (sorted, part) => (sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))] : 0);
const ordered = (values) => values.sort((a, b) => a - b);

async function measure(lock, threads, secs, names, base, hold) {
  const end = now() + secs * 1e6;
  return Promise.all(
    Array.from({ length: threads }, async (_, i) => {
      const tally = { waits: [], errors: 0, first: null };
      for (let called; (called = now()) < end; ) {
        const which = names === "own" ? `${process.pid}-${i}` : names === "one" ? "one" : `n${Math.floor(Math.random() * Number(names))}`;
        try {
          const free = await lock(`${base}-${which}`);
          const waited = now() - called;
          if (hold) await sleep(hold / 1000);
          await free();
          tally.waits.push(waited);
        } catch (error) {
          tally.errors++;
          tally.first ??= String(error);
          await sleep(10);
        }
      }
      return tally;
    }),
  );
}

async function pair(lock) {
  const threads = number("threads", 1);
  await measure(lock, threads, number("warm", 1), "own", `${tag}-warm`, 0);
  say({ event: "ready" });
  await line();
  const started = now();
  const tallies = await measure(lock, threads, number("secs", 3), text("names", "own"), tag, number("hold_us", 0));
  const secs = (now() - started) / 1e6;
  const each = tallies.map((tally) => tally.waits.length);
  const waits = ordered(tallies.flatMap((tally) => tally.waits));
  say({
    event: "result", impl: name, cycles: waits.length, secs, per_worker_min: Math.min(...each), per_worker_max: Math.max(...each),
    p50_us: at(waits, 0.5), p90_us: at(waits, 0.9), p99_us: at(waits, 0.99), max_us: at(waits, 1),
    errors: tallies.reduce((sum, tally) => sum + tally.errors, 0), first_error: tallies.map((tally) => tally.first).find(Boolean) ?? null,
  });
}

async function idle(lock) {
  const target = `${tag}-idle`, waiters = number("waiters", 100);
  const holder = await lock(target);
  let acquired = 0;
  const all = Array.from({ length: waiters }, async () => {
    await (await lock(target))();
    acquired++;
  });
  await sleep(3000);
  say({ event: "ready" });
  await sleep(number("secs", 5) * 1000);
  say({ event: "done" });
  const started = now();
  await holder();
  await Promise.allSettled(all);
  say({ event: "result", impl: name, drain_secs: (now() - started) / 1e6, acquired, errors: waiters - acquired });
}

async function hold(lock) {
  const started = now(), held = [];
  for (let i = 0; i < number("locks", 1000); i++) held.push(await lock(`${tag}-hold-${i}`));
  const acquire_secs = (now() - started) / 1e6;
  say({ event: "ready" });
  await sleep(number("secs", 5) * 1000);
  say({ event: "done" });
  const freed = await Promise.allSettled(held.map((free) => free()));
  say({ event: "result", impl: name, held: freed.filter((one) => one.status === "fulfilled").length, acquire_secs });
}

async function pingpong(first, second) {
  const sides = [first, second], target = `${tag}-pingpong`, taken = [];
  const end = now() + number("secs", 3) * 1e6;
  let free = await first(target);
  say({ event: "ready" });
  for (let turn = 1; now() < end; turn++) {
    const next = sides[turn % 2](target).then((free) => ({ free, at: now() }));
    await sleep((number("settle_us", 5000) + Math.random() * number("jitter_us", 0)) / 1000);
    const released = now();
    await free();
    const got = await next;
    taken.push(got.at - released);
    free = got.free;
  }
  await free();
  ordered(taken);
  say({ event: "result", impl: name, cycles: taken.length, p50_us: at(taken, 0.5), p99_us: at(taken, 0.99), max_us: at(taken, 1) });
}

async function proof(lock) {
  const threads = number("threads", 4), rounds = number("rounds", 20);
  say({ event: "ready" });
  await line();
  await Promise.all(
    Array.from({ length: threads }, async () => {
      for (let round = 0; round < rounds; round++) {
        const free = await lock(`${tag}-proof`);
        const seen = Number(readFileSync(p.file, "utf8"));
        writeFileSync(p.file, String(seen + 1));
        await free();
      }
    }),
  );
  say({ event: "result", impl: name, added: threads * rounds });
}

const lock = connect();
await { pair, idle, hold, proof, pingpong: () => pingpong(lock, connect()) }[workload](lock);
process.exit(0);

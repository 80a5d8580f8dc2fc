// The Java peers, in the words of ../../README.md: IMPL ADDR WORKLOAD key=value...

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicInteger;

public class Peer {
    /** What lets go of a lock. */
    interface Release {
        void run() throws Exception;
    }

    /** One client: a connection or a pool, shared by all threads of this process. */
    interface Client extends AutoCloseable {
        Release lock(String name) throws Exception;
    }

    static Map<String, String> params = new HashMap<>();

    static String text(String key, String usual) {
        return params.getOrDefault(key, usual);
    }

    static double number(String key, double usual) {
        return params.containsKey(key) ? Double.parseDouble(params.get(key)) : usual;
    }

    static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static String quoted(String text) {
        return text == null ? "null" : "\"" + text.replace("\\", "\\\\").replace("\"", "'").replace("\n", " ") + "\"";
    }

    public static void main(String[] args) throws Exception {
        for (String word : Arrays.asList(args).subList(3, args.length)) {
            String[] pair = word.split("=", 2);
            params.put(pair[0], pair[1]);
        }
        String name = args[0];
        Client client = Clients.connect(name, args[1]);
        switch (args[2]) {
            case "pair":
                pair(name, client);
                break;
            case "idle":
                idle(name, client);
                break;
            case "hold":
                hold(name, client);
                break;
            case "pingpong":
                pingpong(name, client, Clients.connect(name, args[1]));
                break;
            case "proof":
                proof(name, client);
                break;
            default:
                System.err.println("no workload is called " + args[2]);
                System.exit(1);
        }
        // Threads of the libraries may outlive their clients.
        System.exit(0);
    }

    static void awaitLine() throws Exception {
        new BufferedReader(new InputStreamReader(System.in)).readLine();
    }

    static class Tally {
        long[] waits = new long[1 << 12];
        int count, errors;
        String first;

        void add(long micros) {
            if (count == waits.length) {
                waits = Arrays.copyOf(waits, count * 2);
            }
            waits[count++] = micros;
        }
    }

    static void pair(String name, Client client) throws Exception {
        int threads = (int) number("threads", 1);
        String tag = text("tag", "bench");
        measure(client, threads, number("warm", 1), "own", tag + "-warm", 0);
        say("{\"event\":\"ready\"}");
        awaitLine();
        long started = System.nanoTime();
        Tally[] tallies = measure(client, threads, number("secs", 3), text("names", "own"), tag, (long) number("hold_us", 0));
        double took = (System.nanoTime() - started) / 1e9;
        int total = 0, least = Integer.MAX_VALUE, most = 0, errors = 0;
        String first = null;
        for (Tally tally : tallies) {
            total += tally.count;
            least = Math.min(least, tally.count);
            most = Math.max(most, tally.count);
            errors += tally.errors;
            first = first == null ? tally.first : first;
        }
        long[] all = new long[total];
        int at = 0;
        for (Tally tally : tallies) {
            System.arraycopy(tally.waits, 0, all, at, tally.count);
            at += tally.count;
        }
        Arrays.sort(all);
        say("{\"event\":\"result\",\"impl\":" + quoted(name) + ",\"cycles\":" + total + ",\"secs\":" + took
            + ",\"per_worker_min\":" + least + ",\"per_worker_max\":" + most + spread(all)
            + ",\"errors\":" + errors + ",\"first_error\":" + quoted(first) + "}");
    }

    static String spread(long[] sorted) {
        return ",\"p50_us\":" + at(sorted, 0.5) + ",\"p90_us\":" + at(sorted, 0.9) + ",\"p99_us\":" + at(sorted, 0.99)
            + ",\"max_us\":" + at(sorted, 1);
    }

    static long at(long[] sorted, double part) {
        return sorted.length == 0 ? 0 : sorted[Math.min(sorted.length - 1, (int) (part * sorted.length))];
    }

    static Tally[] measure(Client client, int threads, double secs, String names, String tag, long holdMicros) throws Exception {
        Tally[] tallies = new Tally[threads];
        Thread[] workers = new Thread[threads];
        long end = System.nanoTime() + (long) (secs * 1e9);
        int many = names.matches("[0-9]+") ? Integer.parseInt(names) : 0;
        for (int i = 0; i < threads; i++) {
            Tally tally = tallies[i] = new Tally();
            String own = tag + "-" + ProcessHandle.current().pid() + "-" + i;
            workers[i] = new Thread(() -> {
                for (long called; (called = System.nanoTime()) < end; ) {
                    String lock = names.equals("own") ? own
                        : many > 0 ? tag + "-n" + ThreadLocalRandom.current().nextInt(many) : tag + "-one";
                    try {
                        Release free = client.lock(lock);
                        long waited = (System.nanoTime() - called) / 1000;
                        if (holdMicros > 0) {
                            Thread.sleep(holdMicros / 1000, (int) (holdMicros % 1000) * 1000);
                        }
                        free.run();
                        tally.add(waited);
                    } catch (Exception error) {
                        tally.errors++;
                        tally.first = tally.first == null ? error.toString() : tally.first;
                        try {
                            Thread.sleep(10);
                        } catch (InterruptedException gone) {
                            return;
                        }
                    }
                }
            });
            workers[i].start();
        }
        for (Thread worker : workers) {
            worker.join();
        }
        return tallies;
    }

    static void idle(String name, Client client) throws Exception {
        int waiters = (int) number("waiters", 100);
        String lock = text("tag", "bench") + "-idle";
        Release holder = client.lock(lock);
        AtomicInteger acquired = new AtomicInteger(), errors = new AtomicInteger();
        List<Thread> all = new ArrayList<>();
        for (int i = 0; i < waiters; i++) {
            Thread waiter = new Thread(() -> {
                try {
                    client.lock(lock).run();
                    acquired.incrementAndGet();
                } catch (Exception error) {
                    errors.incrementAndGet();
                }
            });
            waiter.start();
            all.add(waiter);
        }
        Thread.sleep(3000);
        say("{\"event\":\"ready\"}");
        Thread.sleep((long) (number("secs", 5) * 1000));
        say("{\"event\":\"done\"}");
        long started = System.nanoTime();
        holder.run();
        for (Thread waiter : all) {
            waiter.join();
        }
        say("{\"event\":\"result\",\"impl\":" + quoted(name) + ",\"drain_secs\":" + (System.nanoTime() - started) / 1e9
            + ",\"acquired\":" + acquired + ",\"errors\":" + errors + "}");
    }

    static void hold(String name, Client client) throws Exception {
        int locks = (int) number("locks", 1000);
        String tag = text("tag", "bench");
        long started = System.nanoTime();
        List<Release> held = new ArrayList<>();
        for (int i = 0; i < locks; i++) {
            held.add(client.lock(tag + "-hold-" + i));
        }
        double took = (System.nanoTime() - started) / 1e9;
        say("{\"event\":\"ready\"}");
        Thread.sleep((long) (number("secs", 5) * 1000));
        say("{\"event\":\"done\"}");
        int still = 0;
        for (Release free : held) {
            try {
                free.run();
                still++;
            } catch (Exception lost) {
                // It counts as not held.
            }
        }
        say("{\"event\":\"result\",\"impl\":" + quoted(name) + ",\"held\":" + still + ",\"acquire_secs\":" + took + "}");
    }

    /** The two sides hand one name to each other; whoever holds it waits until the other has called. */
    static void pingpong(String name, Client first, Client second) throws Exception {
        String lock = text("tag", "bench") + "-pingpong";
        long settle = (long) number("settle_us", 5000), jitter = (long) number("jitter_us", 0);
        Client[] sides = {first, second};
        // A program whose compiler has not seen the loop yet would be measured in what it is not.
        for (Client side : sides) {
            measure(side, 1, number("warm", 1.5), "own", text("tag", "bench") + "-warm", 0);
        }
        java.util.concurrent.SynchronousQueue<Boolean> calling = new java.util.concurrent.SynchronousQueue<>();
        java.util.concurrent.BlockingQueue<Long> got = new java.util.concurrent.LinkedBlockingQueue<>();
        long end = System.nanoTime() + (long) (number("secs", 3) * 1e9);
        List<Long> taken = java.util.Collections.synchronizedList(new ArrayList<>());
        CountDownLatch over = new CountDownLatch(1);
        // When the release began; read only by whoever was let in by it.
        long[] released = {0};
        say("{\"event\":\"ready\"}");
        for (int me = 0; me < 2; me++) {
            int mine = me;
            new Thread(() -> {
                try {
                    if (mine == 1) {
                        got.take();
                    }
                    boolean begun = mine == 1;
                    while (true) {
                        if (begun) {
                            calling.put(System.nanoTime() < end);
                        }
                        Release free = sides[mine].lock(lock);
                        long now = System.nanoTime();
                        if (begun) {
                            taken.add((now - released[0]) / 1000);
                        } else {
                            begun = true;
                            got.put(now);
                        }
                        // The last one that calls says so: then nobody calls after it.
                        if (System.nanoTime() >= end) {
                            Boolean more = calling.poll(200, java.util.concurrent.TimeUnit.MILLISECONDS);
                            released[0] = System.nanoTime();
                            free.run();
                            if (more == null || !more) {
                                over.countDown();
                                return;
                            }
                            continue;
                        }
                        calling.take();
                        long rest = settle + (jitter > 0 ? ThreadLocalRandom.current().nextLong(jitter) : 0);
                        Thread.sleep(rest / 1000, (int) (rest % 1000) * 1000);
                        released[0] = System.nanoTime();
                        free.run();
                    }
                } catch (Exception error) {
                    System.err.println(error);
                    System.exit(1);
                }
            }).start();
        }
        over.await();
        long[] all = new ArrayList<>(taken).stream().mapToLong(Long::longValue).sorted().toArray();
        say("{\"event\":\"result\",\"impl\":" + quoted(name) + ",\"cycles\":" + all.length + spread(all) + "}");
    }

    /** Adds one to a plain number in a file, under the lock. */
    static void proof(String name, Client client) throws Exception {
        int threads = (int) number("threads", 4), rounds = (int) number("rounds", 20);
        Path file = Path.of(text("file", ""));
        String lock = text("tag", "bench") + "-proof";
        say("{\"event\":\"ready\"}");
        awaitLine();
        List<Thread> all = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread worker = new Thread(() -> {
                try {
                    for (int round = 0; round < rounds; round++) {
                        Release free = client.lock(lock);
                        int number = Integer.parseInt(Files.readString(file).trim());
                        Files.writeString(file, Integer.toString(number + 1));
                        free.run();
                    }
                } catch (Exception error) {
                    System.err.println(error);
                    System.exit(1);
                }
            });
            worker.start();
            all.add(worker);
        }
        for (Thread worker : all) {
            worker.join();
        }
        say("{\"event\":\"result\",\"impl\":" + quoted(name) + ",\"added\":" + threads * rounds + "}");
    }
}

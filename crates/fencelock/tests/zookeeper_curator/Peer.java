// A program that holds Apache Curator's locks as it is told, in the words of fencelock-testkit's peer.rs; a lock is KIND PATH, where
// KIND is mutex, read or write.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.RetryOneTime;

public class Peer {
    static InterProcessLock lock(CuratorFramework curator, String kind, String path) {
        switch (kind) {
            case "mutex":
                return new InterProcessMutex(curator, path);
            case "read":
                return new InterProcessReadWriteLock(curator, path).readLock();
            default:
                return new InterProcessReadWriteLock(curator, path).writeLock();
        }
    }

    static void say(String word) {
        System.out.println(word);
        System.out.flush();
    }

    public static void main(String[] args) throws Exception {
        CuratorFramework curator = CuratorFrameworkFactory.newClient(args[0], 20000, 20000, new RetryOneTime(100));
        curator.start();
        curator.blockUntilConnected();
        say("ready");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        InterProcessLock held = null;
        for (String order; (order = orders.readLine()) != null; ) {
            String[] words = order.split(" ");
            switch (words[0]) {
                case "take":
                    held = lock(curator, words[1], words[2]);
                    held.acquire();
                    say("in");
                    break;
                case "try":
                    InterProcessLock tried = lock(curator, words[1], words[2]);
                    if (tried.acquire(0, TimeUnit.SECONDS)) {
                        held = tried;
                        say("in");
                    } else {
                        say("held");
                    }
                    break;
                case "leave":
                    held.release();
                    say("out");
                    break;
                case "count":
                    Path file = Path.of(words[3]);
                    InterProcessLock counted = lock(curator, words[1], words[2]);
                    for (int i = 0; i < Integer.parseInt(words[4]); i++) {
                        counted.acquire();
                        long number = Long.parseLong(Files.readString(file).trim());
                        Files.writeString(file, Long.toString(number + 1));
                        counted.release();
                    }
                    say("counted");
                    break;
                default:
                    say("what?");
            }
        }
        curator.close();
    }
}

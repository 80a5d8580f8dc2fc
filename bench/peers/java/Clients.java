// The measured locks, each with its own defaults.

import java.util.concurrent.locks.Lock;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.redis.util.RedisLockRegistry;

class Clients {
    static Peer.Client connect(String name, String addr) throws Exception {
        switch (name) {
            case "redisson-lock":
            case "redisson-fair":
            case "redisson-fenced":
                return redisson(name, addr);
            case "curator-mutex":
                return curator(addr);
            case "spring-registry":
                return spring(addr);
            default:
                throw new IllegalArgumentException("no implementation is called " + name);
        }
    }

    static Peer.Client redisson(String name, String addr) {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + addr);
        RedissonClient redisson = Redisson.create(config);
        return new Peer.Client() {
            public Peer.Release lock(String key) {
                Lock lock = name.equals("redisson-fair") ? redisson.getFairLock(key)
                    : name.equals("redisson-fenced") ? redisson.getFencedLock(key) : redisson.getLock(key);
                lock.lock();
                return lock::unlock;
            }

            public void close() {
                redisson.shutdown();
            }
        };
    }

    static Peer.Client curator(String addr) throws Exception {
        CuratorFramework curator = CuratorFrameworkFactory.newClient(addr, new ExponentialBackoffRetry(1000, 3));
        curator.start();
        curator.blockUntilConnected();
        return new Peer.Client() {
            public Peer.Release lock(String key) throws Exception {
                InterProcessMutex mutex = new InterProcessMutex(curator, "/" + key);
                mutex.acquire();
                return mutex::release;
            }

            public void close() {
                curator.close();
            }
        };
    }

    static Peer.Client spring(String addr) {
        String[] parts = addr.split(":");
        LettuceConnectionFactory factory = new LettuceConnectionFactory(parts[0], Integer.parseInt(parts[1]));
        factory.afterPropertiesSet();
        factory.start();
        RedisLockRegistry registry = new RedisLockRegistry(factory, "bench");
        return new Peer.Client() {
            public Peer.Release lock(String key) {
                Lock lock = registry.obtain(key);
                lock.lock();
                return lock::unlock;
            }

            public void close() {
                factory.destroy();
            }
        };
    }
}

//! A master, two replicas and three sentinels that have found each other.

use crate::server::Server;
use std::time::{Duration, Instant};

pub(crate) struct Trio {
    pub(crate) master: Server,
    pub(crate) replicas: [Server; 2],
    pub(crate) sentinels: Vec<Server>,
}

impl Trio {
    pub(crate) async fn start() -> Trio {
        let master = Server::start();
        let replicas = Server::replicas_of(&master);
        let sentinels: Vec<Server> = (0..3).map(|_| Server::sentinel_of(&master)).collect();
        let limit = Instant::now() + Duration::from_secs(30);
        for sentinel in &sentinels {
            loop {
                let facts: Vec<String> = sentinel.command(&["SENTINEL", "MASTER", "locks"]);
                let fact = |name: &str| facts.chunks(2).find(|pair| pair[0] == name).map(|pair| pair[1].clone());
                if fact("num-other-sentinels").as_deref() == Some("2") && fact("num-slaves").as_deref() == Some("2") {
                    break;
                }
                assert!(Instant::now() < limit, "the sentinels do not agree");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Trio { master, replicas, sentinels }
    }

    /// From now on the master passes nothing on: its replicas stand still and are cut off.
    pub(crate) fn part(&self) {
        self.replicas.iter().for_each(|replica| replica.signal("STOP"));
        let _: u64 = self.master.command(&["CLIENT", "KILL", "TYPE", "replica"]);
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> = self.sentinels.iter().map(|one| format!("127.0.0.1:{}", one.port())).collect();
        format!("redis+sentinel://{}/locks", hosts.join(","))
    }
}

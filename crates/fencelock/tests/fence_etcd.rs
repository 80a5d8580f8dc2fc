//! The fence in a transaction of etcd, held to the one suite.

#[path = "../examples/paused_writer/gateway.rs"]
mod gateway;
#[path = "etcd_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the etcd store")]
mod server;

use fencelock::fence::etcd::access;
use fencelock::store::{BoxFuture, Mode};
use fencelock::{ErrorKind, Result, Token};
use fencelock_testkit::{Checker, check_fence};
use gateway::Gateway;
use server::Cluster;

struct InEtcd {
    cluster: Cluster,
    written: u64,
}

impl InEtcd {
    fn new() -> InEtcd {
        InEtcd { cluster: Cluster::one(), written: 0 }
    }

    fn client(&self) -> Gateway {
        Gateway(self.cluster.hosts())
    }

    async fn write(&mut self, token: &Token) -> Result<()> {
        self.client().put(&access("shop/marks", token)?, "shop/stock", "6").await?;
        self.written += 1;
        Ok(())
    }
}

impl Checker for InEtcd {
    fn access<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let answer = self.write(token).await;
            let stock = self.client().list("shop/stock", "shop/stock0").await.expect("a look");
            let version = stock.first().map_or(0, |(_, version)| *version);
            assert_eq!(version, self.written, "a refused transaction has written nothing");
            answer
        })
    }

    fn restart(&mut self) -> BoxFuture<'_, ()> {
        self.cluster.members[0].restart();
        Box::pin(async {})
    }
}

#[tokio::test]
async fn in_etcd() {
    let mut resource = InEtcd::new();
    let wrong = check_fence(&mut resource).await;
    assert!(wrong.is_empty(), "{wrong:#?}");

    // An access takes out the marks of those that it has overtaken.
    let token = |number, mode| Token::from_parts(number, mode, "few", "redis").unwrap();
    for number in 1..20 {
        for mode in [Mode::Shared, Mode::Exclusive] {
            resource.write(&token(2 * number, mode)).await.unwrap();
        }
    }
    let marks = access("shop/marks", &token(1, Mode::Shared)).unwrap().look;
    let kept = resource.client().list(&marks.from, &marks.to).await.unwrap();
    assert!((1..=2).contains(&kept.len()), "{kept:?}");

    // A condition of the caller's own that does not hold is not the fence's refusal.
    let mut own = access("shop/marks", &token(100, Mode::Exclusive)).unwrap();
    own.empty.push(fencelock::fence::etcd::Range { from: "shop/stock".into(), to: "shop/stock0".into() });
    let refused = resource.client().put(&own, "shop/stock", "7").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    resource.write(&token(50, Mode::Exclusive)).await.expect("what was not carried out left no mark");
}

/// Many at once, none of whom has to try again: in the end the marks are those of the last, and nobody was refused for nothing.
#[tokio::test]
async fn readers_at_once_do_not_refuse_each_other() {
    let resource = InEtcd::new();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 1..=40 {
        let client = resource.client();
        tasks.spawn(async move {
            let token = Token::from_parts(number, Mode::Shared, "many", "redis").unwrap();
            client.put(&access("marks", &token)?, &format!("read/{number}"), "").await
        });
    }
    while let Some(read) = tasks.join_next().await {
        read.expect("no panic").expect("readers do not refuse each other");
    }
    let late = Token::from_parts(39, Mode::Exclusive, "many", "redis").unwrap();
    let refused = resource.client().put(&access("marks", &late).unwrap(), "read/39", "").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Overtaken);
    assert!(refused.message().contains("40"), "{refused}");
}

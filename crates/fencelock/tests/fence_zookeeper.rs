//! The fence in a transaction of ZooKeeper, held to the one suite.

#[path = "zookeeper_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the ZooKeeper store")]
mod server;

use fencelock::fence::zookeeper::{Retry, commit, guard};
use fencelock::store::{BoxFuture, Mode};
use fencelock::zookeeper_client::{Acls, Client, CreateMode};
use fencelock::{ErrorKind, Result, Token};
use fencelock_testkit::{Checker, check_fence};

struct InZooKeeper {
    server: server::Server,
    client: Client,
    written: i32,
}

impl InZooKeeper {
    async fn new() -> InZooKeeper {
        let server = server::Server::start();
        let client = connect(&server).await;
        for node in ["/marks", "/stock"] {
            client.create(node, b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();
        }
        InZooKeeper { server, client, written: 0 }
    }

    async fn write(&mut self, token: &Token) -> Result<()> {
        loop {
            let mut write = self.client.new_multi_writer();
            guard(&self.client, &mut write, "/marks", token).await?;
            write.add_set_data("/stock", b"6", None).unwrap();
            if let Retry::Done(results) = commit(write).await? {
                assert_eq!(results.len(), 2);
                self.written += 1;
                return Ok(());
            }
        }
    }
}

async fn connect(server: &server::Server) -> Client {
    Client::connect(&format!("127.0.0.1:{}", server.port())).await.unwrap()
}

impl Checker for InZooKeeper {
    fn access<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let answer = self.write(token).await;
            let (_, stat) = self.client.get_data("/stock").await.unwrap();
            assert_eq!(stat.version, self.written, "a refused transaction has written nothing");
            answer
        })
    }

    fn restart(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async { self.client = connect(&self.server).await })
    }
}

#[tokio::test]
async fn in_zookeeper() {
    let mut resource = InZooKeeper::new().await;
    let wrong = check_fence(&mut resource).await;
    assert!(wrong.is_empty(), "{wrong:#?}");

    // Somebody else is accepted between the look and the commit.
    let token = |number| Token::from_parts(number, Mode::Exclusive, "between", "redis").unwrap();
    for round in 0..2 {
        let client = resource.client.clone();
        let mut late = client.new_multi_writer();
        guard(&client, &mut late, "/marks", &token(33 + 10 * round)).await.unwrap();
        late.add_set_data("/stock", b"late", None).unwrap();
        resource.write(&token(34 + 10 * round)).await.unwrap();
        assert!(matches!(commit(late).await.unwrap(), Retry::Again), "the marks have moved");
        let refused = resource.write(&token(33 + 10 * round)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Overtaken);
    }

    let mut own = resource.client.new_multi_writer();
    guard(&resource.client, &mut own, "/marks", &token(99)).await.unwrap();
    own.add_set_data("/not/there", b"", None).unwrap();
    assert_eq!(commit(own).await.unwrap_err().kind(), ErrorKind::Denied, "the caller's own operation");
    resource.write(&token(50)).await.expect("what was not carried out left no mark");
    resource.client.set_data("/marks/redis:between", b"damaged", None).await.unwrap();
    assert_eq!(resource.write(&token(100)).await.unwrap_err().kind(), ErrorKind::Broken);
}

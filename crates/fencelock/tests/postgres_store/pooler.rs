//! Behind a pooler that shares connections between transactions.

use crate::pgbouncer::PgBouncer;
use crate::server::Server;
use crate::soon;
use fencelock::store::Wake;
use fencelock::{ErrorKind, Locks};

#[tokio::test]
async fn rows_are_polled_for_and_a_direct_address_brings_the_news_back() {
    let server = Server::start(&[]);
    let pooler = PgBouncer::start(&server);
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", pooler.port);
    let polled = Locks::connect(&url).await.unwrap();
    assert_eq!(polled.store().capability().wake, Wake::Poll);
    let told = Locks::connect(&format!("{url}?listen=127.0.0.1:{}", server.port)).await.unwrap();
    assert_eq!(told.store().capability().wake, Wake::Push);
    for (holds, waits) in [(&polled, &told), (&told, &polled)] {
        let guard = soon("a lock", holds.mutex("x").lock()).await.unwrap();
        let token = guard.token();
        let mutex = waits.mutex("x");
        let waiting = mutex.lock();
        let (next, released) = tokio::join!(soon("its turn", waiting), guard.release());
        released.unwrap();
        assert!(next.unwrap().token() > token);
    }
}

#[tokio::test]
async fn locks_of_a_connection_are_refused() {
    let server = Server::start(&[]);
    let pooler = PgBouncer::start(&server);
    let url = |port| format!("postgres://postgres@127.0.0.1:{port}/postgres?mode=session");
    let error = Locks::connect(&url(pooler.port)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("pooler"), "{error}");
    Locks::connect(&url(server.port)).await.expect("the database itself has them");
}

//! The way to a server, on which what belongs together is sent together: the head of a request and its message are handed to the
//! connection by two tasks, one a moment behind the other.

use super::unhurried::Unhurried;
use crate::store::together::Together;
use futures_core::future::BoxFuture;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

/// As much is kept back; what is larger gains nothing by it.
const MOST: usize = 16 << 10;

/// Makes connections.
#[derive(Clone)]
pub(super) struct Connector(HttpConnector);

impl Connector {
    pub(super) fn new(within: Duration) -> Connector {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(within));
        Connector(http)
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Unhurried<TcpStream>>;
    type Error = <HttpConnector as Service<Uri>>::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let connecting = self.0.call(server);
        Box::pin(async move { Ok(TokioIo::new(Unhurried::new(Together::new(connecting.await?.into_inner(), MOST)))) })
    }
}

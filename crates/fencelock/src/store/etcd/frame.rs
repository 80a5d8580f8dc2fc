//! Calls of one message: the end of a request goes in the same frame as its message. Left to itself the client sends an empty frame
//! behind it, in a packet of its own for which the server wakes up once more: one of three packets of a request.

use http_body::{Body as HttpBody, Frame, SizeHint};
use prost::bytes::Bytes;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::Channel;
use tonic::{Status, transport};

/// A channel for calls whose request is one message.
#[derive(Clone)]
pub(super) struct Unary(pub(super) Channel);

impl Service<http::Request<Body>> for Unary {
    type Response = http::Response<Body>;
    type Error = transport::Error;
    type Future = <Channel as Service<http::Request<Body>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), transport::Error>> {
        Service::poll_ready(&mut self.0, cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        self.0.call(request.map(|body| Body::new(OneFrame { body, sent: false })))
    }
}

/// A body of one frame, which is the last.
struct OneFrame {
    body: Body,
    sent: bool,
}

impl HttpBody for OneFrame {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.sent = true;
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.sent || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

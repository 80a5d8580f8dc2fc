//! The fence as layers for `tower` services: one for the resource that refuses who comes too late, one for its client.

use super::Gate;
use super::header;
use crate::error::ErrorKind;
use crate::token::Token;
use futures_core::future::BoxFuture;
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

/// Which lock protects what is asked for, if any.
type NameOf = Arc<dyn Fn(&Uri) -> Option<String> + Send + Sync>;

/// For the resource: reads the `Fencing-Token` header of each request and asks a [`Gate`].
///
/// - A request that was overtaken is answered with **412** and never reaches the service.
/// - One without the header is answered with 428, unless they are [`optional`](FenceLayer::optional); one that cannot be read,
///   or is for another lock than [`name_of`](FenceLayer::name_of) says, with 400.
/// - Accepted ones go on, with the [`Token`] among the request's extensions, and keep conflicting ones waiting until the
///   service has answered. (What it does after its answer, such as a long body, is not covered.)
///
/// Refusals are `application/problem+json`. The gate's marks live as long as the process: a service that keeps its data in a
/// database takes the token from the extensions and asks the fence there, in its own transaction.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use fencelock::{Token, fence::{Gate, header, tower::FenceLayer}, store::Mode};
/// use http::{Request, Response};
/// use tower::{Layer, Service, ServiceExt, service_fn};
///
/// let write = service_fn(|_request: Request<String>| async { Ok::<_, std::io::Error>(Response::new(String::from("written"))) });
/// let mut shop = FenceLayer::new(Gate::new())
///     .name_of(|uri| uri.path().strip_prefix('/').map(String::from))
///     .layer(write);
///
/// let request = |number| {
///     let token = Token::from_parts(number, Mode::Exclusive, "stock/42", "redis").unwrap();
///     Request::put("/stock/42").header(header::NAME, header::write(&token)).body(String::new())
/// };
/// assert_eq!(shop.ready().await?.call(request(34)?).await?.status(), 200);
/// assert_eq!(shop.ready().await?.call(request(33)?).await?.status(), 412);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FenceLayer {
    gate: Gate,
    name_of: Option<NameOf>,
    optional: bool,
}

impl FenceLayer {
    /// Asks this gate.
    #[must_use]
    pub fn new(gate: Gate) -> FenceLayer {
        FenceLayer { gate, name_of: None, optional: false }
    }

    /// Says which lock, with its namespace and as the store spells it, protects what is asked for. A token of another name is
    /// then refused; without this, a client that names another lock is judged by that one's marks.
    #[must_use]
    pub fn name_of(mut self, name_of: impl Fn(&Uri) -> Option<String> + Send + Sync + 'static) -> FenceLayer {
        self.name_of = Some(Arc::new(name_of));
        self
    }

    /// Lets requests without the header through: for resources that are also read by whoever needs no lock.
    #[must_use]
    pub fn optional(mut self) -> FenceLayer {
        self.optional = true;
        self
    }

    /// The token of a request, if it has one; or why it is refused.
    fn token<B>(&self, request: &Request<B>) -> Result<Option<Token>, Refusal> {
        let mut values = request.headers().get_all(header::NAME).iter();
        let Some(value) = values.next() else {
            let missing = Refusal::new(StatusCode::PRECONDITION_REQUIRED, "the Fencing-Token header is missing");
            return if self.optional { Ok(None) } else { Err(missing) };
        };
        let garbage = |why: &str| Refusal::new(StatusCode::BAD_REQUEST, why);
        if values.next().is_some() {
            return Err(garbage("more than one Fencing-Token header"));
        }
        let token = value.to_str().ok().and_then(|text| header::read(text).ok());
        let token = token.ok_or_else(|| garbage("the Fencing-Token header is not one"))?;
        let expected = self.name_of.as_ref().and_then(|name_of| name_of(request.uri()));
        if expected.is_some_and(|expected| expected != token.name()) {
            return Err(garbage("the Fencing-Token is of another lock"));
        }
        Ok(Some(token))
    }
}

impl fmt::Debug for FenceLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceLayer").field("gate", &self.gate).field("optional", &self.optional).finish()
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = Fenced<S>;

    fn layer(&self, inner: S) -> Fenced<S> {
        Fenced { inner, layer: self.clone() }
    }
}

/// A service behind a fence: see [`FenceLayer`].
#[derive(Clone, Debug)]
pub struct Fenced<S> {
    inner: S,
    layer: FenceLayer,
}

impl<S, R, B> Service<Request<R>> for Fenced<S>
where
    S: Service<Request<R>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    R: Send + 'static,
    B: From<String>,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<B>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<R>) -> Self::Future {
        // The one that is ready is the one that is called.
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        let token = self.layer.token(&request);
        let gate = self.layer.gate.clone();
        Box::pin(async move {
            let token = match token {
                Ok(Some(token)) => token,
                Ok(None) => return inner.call(request).await,
                Err(refusal) => return Ok(refusal.into_response()),
            };
            match gate.enter(&token).await {
                Ok(_pass) => {
                    request.extensions_mut().insert(token);
                    inner.call(request).await
                }
                Err(error) => {
                    let status = match error.kind() {
                        ErrorKind::Overtaken => StatusCode::PRECONDITION_FAILED,
                        _ => StatusCode::BAD_REQUEST,
                    };
                    Ok(Refusal::new(status, error.message()).into_response())
                }
            }
        })
    }
}

/// An answer of the fence itself.
struct Refusal {
    status: StatusCode,
    detail: String,
}

impl Refusal {
    fn new(status: StatusCode, detail: &str) -> Refusal {
        Refusal { status, detail: detail.to_string() }
    }

    fn into_response<B: From<String>>(self) -> Response<B> {
        // The details are words of our own, without anything that JSON would have to escape.
        let body = format!(
            r#"{{"type":"about:blank","title":"{}","status":{},"detail":"{}"}}"#,
            self.status.canonical_reason().unwrap_or_default(),
            self.status.as_u16(),
            self.detail,
        );
        let mut response = Response::new(B::from(body));
        *response.status_mut() = self.status;
        let problem = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(http::header::CONTENT_TYPE, problem);
        response
    }
}

/// For the client: puts a token's header on every request.
///
/// ```
/// use fencelock::{Token, fence::tower::TokenLayer, store::Mode};
/// use tower::{Layer, service_fn};
///
/// let token = Token::from_parts(34, Mode::Exclusive, "stock/42", "redis").unwrap();
/// let client = TokenLayer::new(&token).layer(service_fn(|request: http::Request<String>| async move {
///     assert!(request.headers().contains_key("fencing-token"));
///     Ok::<_, std::io::Error>(http::Response::new(String::new()))
/// }));
/// # let _ = client;
/// ```
#[derive(Clone, Debug)]
pub struct TokenLayer {
    value: HeaderValue,
}

impl TokenLayer {
    /// Puts this token on every request.
    #[must_use]
    pub fn new(token: &Token) -> TokenLayer {
        TokenLayer { value: header_value(token) }
    }
}

/// The header's value, for clients of another kind.
#[must_use]
pub fn header_value(token: &Token) -> HeaderValue {
    // A token with an odd name was made by hand, and the resource will say so.
    HeaderValue::from_str(&header::write(token)).unwrap_or_else(|_| HeaderValue::from_static("0"))
}

impl<S> Layer<S> for TokenLayer {
    type Service = WithToken<S>;

    fn layer(&self, inner: S) -> WithToken<S> {
        WithToken { inner, value: self.value.clone() }
    }
}

/// A client that sends a token: see [`TokenLayer`].
#[derive(Clone, Debug)]
pub struct WithToken<S> {
    inner: S,
    value: HeaderValue,
}

impl<S: Service<Request<B>>, B> Service<Request<B>> for WithToken<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        request.headers_mut().insert(header::NAME, self.value.clone());
        self.inner.call(request)
    }
}

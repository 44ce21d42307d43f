//! `trunkline serve-ui`: the tables as a web page, for a browser on this machine.
//!
//! Anyone who knows the address can see the page, so it contains an unguessable token, and only 127.0.0.1 is listened
//! on. The page cannot change anything. Names of hosts and servers are text in it, never HTML, and its policy forbids
//! all requests except for its events.

mod events;

use std::io::IsTerminal as _;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use anyhow::Context as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use subtle::ConstantTimeEq as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc};
use trunkline_control::place::Place;
use trunkline_http::{Body, other_method, response};

use crate::feed::{self, News};

/// The most browser connections at the same time: a page has two. Further ones wait.
const CONNECTIONS: usize = 32;

/// The most pages that are kept up to date. Each has its own subscription.
const PAGES: usize = 8;

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const COMMON: &str = include_str!("page/common.js");

/// The content of a page about a subject.
#[derive(Debug, Clone, Copy)]
pub struct Page {
    /// The body, in HTML.
    pub body: &'static str,
    pub script: &'static str,
}

/// The page about the daemon.
const DAEMON: Page = Page {
    body: include_str!("page/daemon.html"),
    script: include_str!("page/daemon.js"),
};

/// Serves the page about the daemon.
pub(crate) async fn of_daemon(place: Place, every: Duration, port: u16) -> anyhow::Result<ExitCode> {
    let follow = move || feed::follow_daemon(place.clone(), every);
    serve(DAEMON, follow, port).await
}

/// Serves a page until a signal arrives, and prints its address. Each reader gets the news of its own `follow`.
///
/// # Errors
/// The port cannot be listened on, or the address cannot be printed.
pub async fn serve<U: Serialize + Send + 'static>(
    page: Page,
    follow: impl Fn() -> mpsc::Receiver<News<U>> + Send + Sync + 'static,
    port: u16,
) -> anyhow::Result<ExitCode> {
    let mut interrupt = signal(SignalKind::interrupt()).context("signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("signals")?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .with_context(|| format!("cannot listen on port {port} of 127.0.0.1"))?;
    let port = listener.local_addr()?.port();
    let site = Arc::new(Site {
        page,
        follow,
        port,
        token: unguessable(),
        pages: Arc::new(Semaphore::new(PAGES)),
    });
    {
        use std::io::Write as _;
        let mut stdout = std::io::stdout();
        // Without its address the page is useless.
        writeln!(stdout, "http://127.0.0.1:{port}/{}/", site.token)?;
        stdout.flush()?;
    }
    tokio::select! {
        () = answer_all(&listener, &site) => Ok(ExitCode::SUCCESS),
        _ = interrupt.recv() => {
            // The shell's prompt must not follow ^C directly.
            if std::io::stderr().is_terminal() {
                eprintln!();
            }
            Ok(ExitCode::from(128 + 2))
        }
        _ = terminate.recv() => Ok(ExitCode::from(128 + 15)),
    }
}

/// The data for answering requests.
struct Site<F> {
    page: Page,
    follow: F,
    port: u16,
    token: String,
    pages: Arc<Semaphore>,
}

/// Returns 128 random bits in hexadecimal.
fn unguessable() -> String {
    let bits: u128 = rand::random();
    format!("{bits:032x}")
}

async fn answer_all<U, F>(listener: &TcpListener, site: &Arc<Site<F>>)
where
    U: Serialize + Send + 'static,
    F: Fn() -> mpsc::Receiver<News<U>> + Send + Sync + 'static,
{
    let accept = |cx: &mut Context<'_>| listener.poll_accept(cx).map_ok(|(stream, _)| Some(stream));
    let site = site.clone();
    // A page listens to its events while it is open.
    trunkline_http::serve(accept, CONNECTIONS, None, move |request| site.respond(request)).await;
}

impl<U: Serialize + Send + 'static, F: Fn() -> mpsc::Receiver<News<U>>> Site<F> {
    fn respond(&self, request: &Request<Incoming>) -> Response<Body> {
        let mut response = self.answer(request);
        let headers = response.headers_mut();
        for (name, value) in [
            (CACHE_CONTROL, "no-store"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (X_FRAME_OPTIONS, "DENY"),
            (REFERRER_POLICY, "no-referrer"),
            (
                HeaderName::from_static("cross-origin-resource-policy"),
                "same-origin",
            ),
            (
                HeaderName::from_static("cross-origin-opener-policy"),
                "same-origin",
            ),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        // Pages have their own policy.
        headers
            .entry(CONTENT_SECURITY_POLICY)
            .or_insert(HeaderValue::from_static(
                "default-src 'none'; frame-ancestors 'none'",
            ));
        response
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        // A page of another site, whose name may resolve to this machine, or which sends requests here, learns nothing,
        // not even whether its token is right.
        if !is_from_here(request.headers(), self.port) {
            return response(
                StatusCode::FORBIDDEN,
                "text/plain",
                "this is for pages of this machine\n",
            );
        }
        if request.method() != Method::GET {
            return other_method("GET");
        }
        let path = request.uri().path();
        let (token, rest) = path
            .strip_prefix('/')
            .and_then(|path| path.split_once('/'))
            .unwrap_or_default();
        if !bool::from(token.as_bytes().ct_eq(self.token.as_bytes())) {
            let words = "this address is not complete: take the one that `trunkline serve-ui` printed\n";
            return response(StatusCode::NOT_FOUND, "text/plain", words);
        }
        match rest {
            "" => self.page.respond(),
            "events" => self.events(),
            _ => response(StatusCode::NOT_FOUND, "text/plain", "there is one page here\n"),
        }
    }

    fn events(&self) -> Response<Body> {
        let Ok(turn) = self.pages.clone().try_acquire_owned() else {
            let words = format!("{PAGES} pages are open: close one\n");
            return response(StatusCode::SERVICE_UNAVAILABLE, "text/plain", words);
        };
        let body = events::body((self.follow)(), turn);
        let mut response = Response::new(body.boxed_unsync());
        response.headers_mut().insert(
            CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream; charset=utf-8"),
        );
        response
    }
}

impl Page {
    /// Returns the page. Its policy allows only the style and script with an unguessable number.
    fn respond(self) -> Response<Body> {
        let nonce = unguessable();
        let script = [COMMON, self.script].concat();
        let text = PAGE
            .replace("<!--body-->", self.body)
            .replace("{nonce}", &nonce)
            .replace("/*style*/", STYLE)
            .replace("/*script*/", &script);
        let mut response = response(StatusCode::OK, "text/html", text);
        let policy = format!(
            "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
        );
        if let Ok(policy) = HeaderValue::from_str(&policy) {
            response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
        }
        response
    }

    /// Checks that no part requests anything from elsewhere or treats text as HTML: for tests.
    ///
    /// # Errors
    /// The offending text.
    pub fn check(self) -> Result<(), &'static str> {
        let all = [PAGE, STYLE, COMMON, self.body, self.script].concat();
        let text = all.replace("http://www.w3.org/2000/svg", "");
        let elsewhere = [
            "http:",
            "https:",
            "src=",
            "url(",
            "@import",
            "innerHTML",
            "insertAdjacentHTML",
        ];
        let found = elsewhere.into_iter().find(|elsewhere| text.contains(elsewhere));
        found.map_or(Ok(()), Err)
    }
}

/// Returns true if a request names this machine and was not made by a page of another site.
fn is_from_here(headers: &HeaderMap, port: u16) -> bool {
    let is_ours = |name: &str| name == format!("127.0.0.1:{port}") || name == format!("localhost:{port}");
    let only = |name: HeaderName| {
        let mut values = headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (value, None) => Ok(value.map(|value| value.to_str().unwrap_or_default().to_ascii_lowercase())),
            (_, Some(_)) => Err(()),
        }
    };
    let Ok(Some(host)) = only(HOST) else { return false };
    let origin = match only(ORIGIN) {
        Ok(None) => true,
        Ok(Some(origin)) => origin.strip_prefix("http://").is_some_and(is_ours),
        Err(()) => false,
    };
    let site = match only(HeaderName::from_static("sec-fetch-site")) {
        Ok(None) => true,
        Ok(Some(site)) => site == "same-origin" || site == "none",
        Err(()) => false,
    };
    is_ours(&host) && origin && site
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_this_machine_are_answered() {
        let asked = |headers: &[(&'static str, &'static str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
            }
            is_from_here(&map, 8080)
        };
        assert!(asked(&[("host", "127.0.0.1:8080")]));
        assert!(asked(&[
            ("host", "LocalHost:8080"),
            ("origin", "http://localhost:8080")
        ]));
        assert!(asked(&[("host", "127.0.0.1:8080"), ("sec-fetch-site", "none")]));
        for headers in [
            &[][..],
            &[("host", "evil.example:8080")],
            &[("host", "127.0.0.1")],
            &[("host", "127.0.0.1:8081")],
            &[("host", "127.0.0.1:8080"), ("host", "evil.example")],
            &[("host", "127.0.0.1:8080"), ("origin", "null")],
            &[("host", "127.0.0.1:8080"), ("origin", "https://evil.example")],
            &[("host", "127.0.0.1:8080"), ("origin", "http://127.0.0.1:8081")],
            &[("host", "127.0.0.1:8080"), ("sec-fetch-site", "cross-site")],
            &[("host", "127.0.0.1:8080"), ("sec-fetch-site", "same-site")],
        ] {
            assert!(!asked(headers), "{headers:?}");
        }
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        assert_eq!(DAEMON.check(), Ok(()));
        assert_ne!(unguessable(), unguessable());
        assert_eq!(unguessable().len(), 32);
    }
}

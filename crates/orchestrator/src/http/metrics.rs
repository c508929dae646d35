//! Counts requests of the main router, refused ones too, and exposes all figures.
//!
//! Labels are from closed sets: the pattern of the route, never the path; the method,
//! `other` if it is none of the known ones; the status.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};

use axum::{
    body::{Body, Bytes},
    extract::{MatchedPath, Request, State},
    http::{HeaderValue, Method, header::CONTENT_TYPE},
    middleware::Next,
    response::Response,
};
use fuse_control::{BUCKETS, Control};
use hyper::body::{Frame, SizeHint};
use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
    core::Collector, process_collector::ProcessCollector,
};

use super::{ApiError, App};

/// Route of what matched none, or was refused before that was known.
const UNKNOWN: &str = "unknown";

/// The figures; clones share them.
#[derive(Debug, Clone)]
pub struct HttpMetrics {
    requests: IntCounterVec,
    duration: HistogramVec,
    in_flight: IntGauge,
}

impl HttpMetrics {
    /// Adds the figures, and those of the process, to the control plane's.
    ///
    /// # Errors
    /// They are there already.
    pub fn register(control: &Control) -> Result<Self, prometheus::Error> {
        fn add<C: Collector + Clone + 'static>(
            registry: &Registry,
            figure: C,
        ) -> Result<C, prometheus::Error> {
            registry.register(Box::new(figure.clone()))?;
            Ok(figure)
        }
        let registry = control.metrics().registry();
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let requests = Opts::new("orchestrator_http_requests_total", "Requests.");
        let duration = HistogramOpts::new(
            "orchestrator_http_request_duration_seconds",
            "Time until a response began.",
        );
        let in_flight = IntGauge::new(
            "orchestrator_http_requests_in_flight",
            "Requests whose response is not over.",
        );
        Ok(Self {
            requests: add(
                registry,
                IntCounterVec::new(requests, &["route", "method", "code"])?,
            )?,
            duration: add(
                registry,
                HistogramVec::new(duration.buckets(BUCKETS.to_vec()), &["route", "method"])?,
            )?,
            in_flight: add(registry, in_flight?)?,
        })
    }
}

/// Middleware around the address allowlist.
pub(super) async fn count(State(app): State<App>, request: Request, next: Next) -> Response {
    let Some(metrics) = app.metrics.clone() else {
        return next.run(request).await;
    };
    let started = Instant::now();
    let flight = Flight::begin(&metrics.in_flight);
    let method = method_label(request.method());
    let response = next.run(request).await;
    // What was refused before its route was looked at has none.
    let matched = response.extensions().get::<MatchedPath>().cloned();
    let route = matched.as_ref().map_or(UNKNOWN, MatchedPath::as_str);
    metrics
        .requests
        .with_label_values(&[route, method, response.status().as_str()])
        .inc();
    metrics
        .duration
        .with_label_values(&[route, method])
        .observe(started.elapsed().as_secs_f64());
    response.map(|body| {
        Body::new(Counted {
            body,
            _flight: flight,
        })
    })
}

/// Innermost middleware: hands the route out to [`count`].
pub(super) async fn note_route(request: Request, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let mut response = next.run(request).await;
    if let Some(matched) = matched {
        response.extensions_mut().insert(matched);
    }
    response
}

fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::CONNECT => "CONNECT",
        Method::TRACE => "TRACE",
        _ => "other",
    }
}

/// A request under way, from its head to the end of its response.
struct Flight(IntGauge);

impl Flight {
    fn begin(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// A response body that keeps its request in flight.
struct Counted {
    body: Body,
    _flight: Flight,
}

impl hyper::body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// `GET /metrics`.
pub(crate) async fn expose(State(app): State<App>) -> Result<Response, ApiError> {
    let mut text = String::new();
    let families = app.control.metrics().registry().gather();
    TextEncoder::new()
        .encode_utf8(&families, &mut text)
        .map_err(|e| {
            tracing::error!(error = %e, "cannot expose metrics");
            ApiError::internal()
        })?;
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static(prometheus::TEXT_FORMAT),
    );
    Ok(response)
}

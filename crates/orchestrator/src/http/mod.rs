//! The HTTP surface around the routes: layers, authentication, bodies, errors.
//!
//! Order, outermost first: the outer probes; `Server`, request id and span; counting;
//! whom a proxy speaks for; address allowlist; route match (404 and 405 answer here, without credentials);
//! authentication (all but login and logout); the master check of routes that need
//! it; whose environment it is; handler.

mod address_blocks;
mod allowlist;
mod auth;
mod body;
mod error;
mod layers;
pub(crate) mod metrics;
mod ownership;
mod principal;
mod proxies;
mod query;
mod session;
mod throttle;

use std::sync::Arc;

use axum::{Router, middleware, routing::any};
use fuse_control::Control;
use tower::ServiceBuilder;

pub use address_blocks::AddressBlocks;
pub use auth::Auth;
pub use metrics::HttpMetrics;

pub(crate) use auth::note_failure;
pub(crate) use body::{Limit, read_optional, read_required, read_unhurried};
pub(crate) use error::ApiError;
pub(crate) use principal::Principal;
pub(crate) use query::Query;
pub(crate) use session::set_cookie;

use self::throttle::Throttle;
use crate::routes::{self, Access};

/// What handlers share.
#[derive(Debug, Clone)]
pub struct App {
    pub(crate) control: Control,
    pub(crate) auth: Auth,
    pub(crate) allowlist: AddressBlocks,
    pub(crate) proxies: AddressBlocks,
    pub(crate) secure_cookies: bool,
    pub(crate) logins: Arc<Throttle>,
    pub(crate) metrics: Option<HttpMetrics>,
}

impl App {
    /// A surface over `control` that lets in whom `auth` says, from everywhere.
    #[must_use]
    pub fn new(control: Control, auth: Auth) -> Self {
        Self {
            control,
            auth,
            allowlist: AddressBlocks::default(),
            proxies: AddressBlocks::default(),
            secure_cookies: false,
            logins: Arc::default(),
            metrics: None,
        }
    }

    /// The same, for these source addresses only.
    #[must_use]
    pub fn restricted_to(mut self, allowlist: AddressBlocks) -> Self {
        self.allowlist = allowlist;
        self
    }

    /// The same, behind these proxies, which say whom they speak for.
    #[must_use]
    pub fn behind(mut self, proxies: AddressBlocks) -> Self {
        self.proxies = proxies;
        self
    }

    /// The same, with its requests counted.
    #[must_use]
    pub fn counted_by(mut self, metrics: HttpMetrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// The same, with session cookies that browsers send over TLS only.
    #[must_use]
    pub fn with_secure_cookies(mut self, secure: bool) -> Self {
        self.secure_cookies = secure;
        self
    }
}

/// The whole surface.
pub fn router(app: App) -> Router {
    let has_keys = auth::has_keys(&app.control);
    let mut main = Router::new();
    for route in routes::table() {
        if !has_keys && routes::api_key::is_of_keys(route.path) {
            continue;
        }
        let mut handler = route.handler;
        if ownership::is_of_one_thing(route.path) {
            let layer = middleware::from_fn_with_state(app.clone(), ownership::admit_owner);
            handler = handler.route_layer(layer);
        }
        if let Access::Master(refusal) = route.access {
            handler = handler.route_layer(middleware::from_fn(move |principal, request, next| {
                principal::require_master(refusal, principal, request, next)
            }));
        }
        main = main.route(route.path, handler);
    }
    let mut main = main.route_layer(middleware::from_fn_with_state(
        app.clone(),
        auth::authenticate,
    ));
    for route in routes::public() {
        main = main.route(route.path, route.handler);
    }
    if !has_keys {
        for path in routes::api_key::PATHS {
            main = main.route(path, any(routes::api_key::disabled));
        }
    }
    let main = main
        .method_not_allowed_fallback(layers::method_not_allowed)
        .fallback(layers::route_not_found)
        .layer(layers::catch_panic())
        .layer(middleware::from_fn(metrics::note_route))
        .with_state(app.clone());
    // Around the router, not its routes: whoever is refused here learns nothing of them,
    // not even from an `Allow` header.
    let main = ServiceBuilder::new()
        .layer(middleware::from_fn(layers::identify))
        .layer(middleware::from_fn_with_state(app.clone(), metrics::count))
        .layer(middleware::from_fn_with_state(
            app.clone(),
            proxies::look_behind,
        ))
        .layer(middleware::from_fn_with_state(
            app.clone(),
            allowlist::admit,
        ))
        .service(main);
    let mut outer = Router::new();
    for route in routes::outer() {
        outer = outer.route(route.path, route.handler);
    }
    outer
        .method_not_allowed_fallback(layers::method_not_allowed)
        .with_state(app)
        .fallback_service(main)
}

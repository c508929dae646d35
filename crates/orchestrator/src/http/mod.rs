//! The HTTP surface around the routes: layers, authentication, bodies, errors.
//!
//! Order, outermost first: the outer probes; `Server`, request id and span; address
//! allowlist; route match (404 and 405 answer here, without credentials);
//! authentication; handler.

mod allowlist;
mod auth;
mod body;
mod error;
mod layers;
mod query;

use axum::Router;
use fuse_control::Control;

pub use allowlist::Allowlist;
pub use auth::Auth;

pub(crate) use body::{Limit, read_required};
pub(crate) use error::ApiError;
pub(crate) use query::Query;

use crate::routes;

/// What handlers share.
#[derive(Debug, Clone)]
pub struct App {
    pub(crate) control: Control,
    pub(crate) auth: Auth,
    pub(crate) allowlist: Allowlist,
}

impl App {
    /// A surface over `control` that lets in whom `auth` says, from everywhere.
    #[must_use]
    pub fn new(control: Control, auth: Auth) -> Self {
        Self {
            control,
            auth,
            allowlist: Allowlist::default(),
        }
    }

    /// The same, for these source addresses only.
    #[must_use]
    pub fn restricted_to(mut self, allowlist: Allowlist) -> Self {
        self.allowlist = allowlist;
        self
    }
}

/// The whole surface.
pub fn router(app: App) -> Router {
    let mut main = Router::new();
    for route in routes::table() {
        main = main.route(route.path, route.handler);
    }
    let main = main
        .route_layer(axum::middleware::from_fn_with_state(
            app.clone(),
            auth::authenticate,
        ))
        .method_not_allowed_fallback(layers::method_not_allowed)
        .fallback(layers::route_not_found)
        .layer(layers::catch_panic())
        .layer(axum::middleware::from_fn_with_state(
            app.clone(),
            allowlist::admit,
        ))
        .layer(axum::middleware::from_fn(layers::identify))
        .with_state(app.clone());
    routes::outer(app).fallback_service(main)
}

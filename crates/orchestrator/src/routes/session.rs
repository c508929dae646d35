//! `/login` and `/logout`: the session cookie of browsers.

use axum::{
    extract::{Request, State},
    http::{StatusCode, header::SET_COOKIE},
    response::{IntoResponse as _, Response},
};
use fuse_wire_api::Login;

use crate::{
    http::{ApiError, App, Limit, note_failure, read_required, set_cookie},
    server::Peer,
};

pub(super) async fn login(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let master = match app.auth.login(&app.control) {
        Ok(Some(master)) => master,
        Ok(None) => return Ok(StatusCode::NO_CONTENT.into_response()),
        Err(refused) => {
            note_failure(&app, &parts);
            return Err(refused);
        }
    };
    let address = parts.extensions.get::<Peer>().map(|peer| peer.address);
    if let Some(wait) = address.and_then(|address| app.logins.wait(address)) {
        return Err(ApiError::too_many_logins(wait));
    }
    let login: Login = read_required(body, Limit::Login).await?;
    if !master.is(login.token.as_bytes()) {
        if let Some(address) = address {
            app.logins.failed(address);
        }
        note_failure(&app, &parts);
        return Err(ApiError::unauthorized("invalid token"));
    }
    Ok(with_cookie(&master.open_session(), &app))
}

pub(super) async fn logout(State(app): State<App>) -> Response {
    with_cookie("", &app)
}

fn with_cookie(value: &str, app: &App) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    if let Some(cookie) = set_cookie(value, app.secure_cookies) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}

//! Which agent URLs may be dialled.
//!
//! A host's URL is typed by an operator and then carries that host's token, so it is checked before
//! the first byte is sent: http or https, a host, a usable port, and nothing that could smuggle
//! credentials or change the request (user info, query, fragment). A path prefix is allowed, for
//! agents behind a reverse proxy.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;
use url::{Host, Url};

/// A URL that passed the policy. Displays without a trailing slash. Cheap to clone, because every
/// client error carries one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AgentUrl(Arc<Url>);

/// Why a URL was refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AgentUrlError {
    /// Not a URL at all.
    #[error("agent url {url:?} is not a valid URL (example: http://10.0.0.5:8090)")]
    Malformed {
        /// The text as given.
        url: String,
        /// What the parser said.
        #[source]
        source: url::ParseError,
    },
    /// Another scheme.
    #[error("agent url scheme must be http or https, not {scheme:?}")]
    Scheme {
        /// The scheme as given.
        scheme: String,
    },
    /// No host.
    #[error("agent url has no host")]
    NoHost,
    /// Port zero.
    #[error("agent url port must be 1 to 65535")]
    Port,
    /// Credentials in the URL.
    #[error("agent url must not contain user info; pass the token separately")]
    UserInfo,
    /// A query string.
    #[error("agent url must not contain a query")]
    Query,
    /// A fragment.
    #[error("agent url must not contain a fragment")]
    Fragment,
}

impl AgentUrl {
    /// Parses and checks.
    ///
    /// # Errors
    /// The first rule that the URL breaks.
    pub fn parse(text: &str) -> Result<Self, AgentUrlError> {
        let mut url = Url::parse(text.trim()).map_err(|source| match source {
            url::ParseError::EmptyHost => AgentUrlError::NoHost,
            url::ParseError::InvalidPort => AgentUrlError::Port,
            source => AgentUrlError::Malformed {
                url: without_user_info(text),
                source,
            },
        })?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(AgentUrlError::Scheme {
                scheme: url.scheme().to_owned(),
            });
        }
        match url.host() {
            None | Some(Host::Domain("")) => return Err(AgentUrlError::NoHost),
            Some(_) => {}
        }
        if url.port() == Some(0) {
            return Err(AgentUrlError::Port);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(AgentUrlError::UserInfo);
        }
        if url.query().is_some() {
            return Err(AgentUrlError::Query);
        }
        if url.fragment().is_some() {
            return Err(AgentUrlError::Fragment);
        }
        // Joining replaces the last path segment unless the prefix ends with a slash.
        if !url.path().ends_with('/') {
            let path = format!("{}/", url.path());
            url.set_path(&path);
        }
        Ok(Self(Arc::new(url)))
    }

    /// The URL of a route below the agent's prefix. Each segment is percent-encoded, so that an id
    /// can never leave its place in the path.
    #[must_use]
    pub fn route(&self, segments: &[&str]) -> Url {
        let mut url = Url::clone(&self.0);
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }

    /// The same agent without a path prefix: scheme, host and port.
    #[must_use]
    pub fn origin(&self) -> Self {
        let mut url = Url::clone(&self.0);
        url.set_path("/");
        Self(Arc::new(url))
    }

    /// Whether the connection is encrypted.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.0.scheme() == "https"
    }
}

/// Cuts credentials out of a text that did not parse as a URL, before it is shown.
fn without_user_info(text: &str) -> String {
    match (text.find("://"), text.rfind('@')) {
        (Some(start), Some(end)) if start + 3 <= end => {
            format!("{}…{}", &text[..start + 3], &text[end..])
        }
        (_, Some(end)) => format!("…{}", &text[end..]),
        _ => text.to_owned(),
    }
}

impl fmt::Display for AgentUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

impl std::str::FromStr for AgentUrl {
    type Err = AgentUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn accepted_forms_display_without_a_slash() {
        for (text, shown) in [
            ("http://10.0.0.5:8090", "http://10.0.0.5:8090"),
            (
                "https://agents.example/host-1/",
                "https://agents.example/host-1",
            ),
            ("http://[::1]:8090", "http://[::1]:8090"),
        ] {
            assert_eq!(AgentUrl::parse(text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn refused_forms() {
        use AgentUrlError as E;
        assert!(matches!(
            AgentUrl::parse("10.0.0.5:8090"),
            Err(E::Malformed { .. })
        ));
        assert!(matches!(AgentUrl::parse("ftp://h"), Err(E::Scheme { .. })));
        assert_eq!(AgentUrl::parse("http://"), Err(E::NoHost));
        assert_eq!(AgentUrl::parse("http://h:0"), Err(E::Port));
        assert_eq!(AgentUrl::parse("http://h:99999"), Err(E::Port));
        assert_eq!(AgentUrl::parse("http://u:p@h"), Err(E::UserInfo));
        assert_eq!(AgentUrl::parse("http://h?a=b"), Err(E::Query));
        assert_eq!(AgentUrl::parse("http://h#a"), Err(E::Fragment));
    }

    #[test]
    fn routes_keep_the_prefix_and_encode_segments() {
        let url = AgentUrl::parse("https://h/p").unwrap();
        assert_eq!(
            url.route(&["v1", "vm", "a/../b"]).as_str(),
            "https://h/p/v1/vm/a%2F..%2Fb"
        );
    }

    #[test]
    fn a_refused_url_does_not_show_its_password() {
        let error = AgentUrl::parse("http://user:hunter2@[bad").unwrap_err();
        assert!(
            !format!("{error} {error:?}").contains("hunter2"),
            "{error:?}"
        );
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_results_are_stable(text in ".{0,60}") {
            if let Ok(url) = AgentUrl::parse(&text) {
                prop_assert_eq!(AgentUrl::parse(&url.to_string()).unwrap(), url);
            }
        }

        #[test]
        fn a_segment_never_changes_the_route(id in "[^\u{0}]{1,40}") {
            let url = AgentUrl::parse("http://h:1").unwrap();
            prop_assume!(id != "." && id != "..");
            let routed = url.route(&["v1", "vm", &id]);
            prop_assert_eq!(routed.host_str(), Some("h"));
            prop_assert!(routed.query().is_none() && routed.fragment().is_none());
            prop_assert!(routed.path().starts_with("/v1/vm/"));
            prop_assert_eq!(routed.path_segments().unwrap().count(), 3);
        }
    }
}

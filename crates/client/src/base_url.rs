//! The address of an orchestrator, and how paths are joined to it.

use url::Url;

use crate::Error;

/// Why a text is not the address of an orchestrator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BaseUrlError {
    /// Not `http://host…` or `https://host…`.
    #[error("{0:?} is not a URL with a scheme and a host, such as http://127.0.0.1:8080")]
    Malformed(String),
    /// Credentials belong in the token.
    #[error("the URL must not carry a user name or password; pass the token with --token")]
    Credentials,
    /// A base URL has neither.
    #[error("the URL must not carry a query or a fragment")]
    QueryOrFragment,
}

/// Base URL of an orchestrator: scheme, host, port and an optional path prefix, never `/v1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseUrl {
    url: Url,
    stripped_prefix: bool,
}

impl BaseUrl {
    /// Reads an address as people type it. Trailing slashes go, and so does one trailing `/v1`:
    /// the prefix belongs to the API, and doubling it would make every route unknown.
    ///
    /// # Errors
    /// When it has no http(s) scheme or no host, or carries credentials, a query or a fragment.
    pub fn parse(text: &str) -> Result<Self, BaseUrlError> {
        let text = text.trim();
        let malformed = || BaseUrlError::Malformed(text.to_owned());
        let mut url = Url::parse(text).map_err(|_| malformed())?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(BaseUrlError::Credentials);
        }
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(malformed());
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(BaseUrlError::QueryOrFragment);
        }
        let path = url.path().trim_end_matches('/');
        let (path, stripped_prefix) = match path.strip_suffix("/v1") {
            Some(shorter) => (shorter.to_owned(), true),
            None => (path.to_owned(), false),
        };
        url.set_path(&path);
        Ok(Self {
            url,
            stripped_prefix,
        })
    }

    /// Whether a trailing `/v1` was dropped.
    #[must_use]
    pub fn stripped_prefix(&self) -> bool {
        self.stripped_prefix
    }

    /// Host name or address, IPv6 in brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// The port, the scheme's own when none was given.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.url.port_or_known_default().unwrap_or_default()
    }

    /// Whether TLS is used.
    #[must_use]
    pub fn is_https(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// Whether the address is this machine, which no proxy can reach for us.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        match self.url.host() {
            Some(url::Host::Ipv4(address)) => address.is_loopback(),
            Some(url::Host::Ipv6(address)) => address.is_loopback(),
            Some(url::Host::Domain(name)) => name == "localhost",
            None => false,
        }
    }

    /// The base with path segments appended, each of them escaped.
    ///
    /// # Errors
    /// [`Error::InvalidId`] for a segment that an URL cannot carry as one (empty, `.`, `..`): it
    /// would silently address another resource.
    pub(crate) fn join(&self, segments: &[&str]) -> Result<Url, Error> {
        let mut url = self.url.clone();
        if let Some(bad) = segments
            .iter()
            .find(|segment| matches!(**segment, "" | "." | ".."))
        {
            return Err(Error::InvalidId {
                id: (*bad).to_owned(),
            });
        }
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        Ok(url)
    }
}

impl std::fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.url.as_str().trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        BaseUrl::parse(text).unwrap().to_string()
    }

    #[test]
    fn addresses_are_normalised() {
        assert_eq!(shown("http://127.0.0.1:8080"), "http://127.0.0.1:8080");
        assert_eq!(shown(" http://127.0.0.1:8080/ "), "http://127.0.0.1:8080");
        assert_eq!(
            shown("https://orch.example.com/fuse/"),
            "https://orch.example.com/fuse"
        );
        assert_eq!(shown("http://[::1]:8080/v1/"), "http://[::1]:8080");
        assert!(BaseUrl::parse("http://h/v1").unwrap().stripped_prefix());
        assert!(!BaseUrl::parse("http://h").unwrap().stripped_prefix());
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "10.0.0.5",
            "10.0.0.5:8080",
            "localhost:8080",
            "ftp://h",
            "http://",
            "/v1",
        ] {
            assert!(
                matches!(BaseUrl::parse(text), Err(BaseUrlError::Malformed(_))),
                "{text:?}"
            );
        }
        assert_eq!(
            BaseUrl::parse("http://u:p@h"),
            Err(BaseUrlError::Credentials)
        );
        assert_eq!(
            BaseUrl::parse("http://h/?a=1"),
            Err(BaseUrlError::QueryOrFragment)
        );
    }

    #[test]
    fn ids_are_escaped_into_one_segment() {
        let base = BaseUrl::parse("http://h:1/fuse").unwrap();
        let url = |id| base.join(&["v1", "hosts", id]).map(|url| url.to_string());
        assert_eq!(
            url("a/b ?#%").unwrap(),
            "http://h:1/fuse/v1/hosts/a%2Fb%20%3F%23%25"
        );
        for bad in ["", ".", ".."] {
            assert!(matches!(url(bad), Err(Error::InvalidId { .. })), "{bad:?}");
        }
    }

    #[test]
    fn loopback_is_recognised() {
        for (text, want) in [
            ("http://127.0.0.1:8080", true),
            ("http://[::1]:8080", true),
            ("http://localhost:8080", true),
            ("http://10.0.0.5:8080", false),
        ] {
            assert_eq!(BaseUrl::parse(text).unwrap().is_loopback(), want, "{text}");
        }
    }
}

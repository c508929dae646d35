//! What the configuration file holds, and the rules for changing it.
//!
//! Invariants: context names are unique; `current_context` names an existing context or is absent.
//! Keys this version does not know are carried along untouched, so that an older and a newer `fuse`
//! can share one file.

use std::collections::BTreeMap;

use fuse_client::Token;
use serde::{Deserialize, Serialize};

/// The whole file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Config {
    /// Name of the context used when `--context` is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) current_context: Option<String>,
    /// All contexts, in the order they were added.
    #[serde(default)]
    pub(crate) contexts: Vec<Context>,
    /// Keys of other versions.
    #[serde(flatten)]
    pub(crate) other: BTreeMap<String, serde_json::Value>,
}

/// One orchestrator, as this user talks to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Context {
    /// Unique name.
    pub(crate) name: String,
    /// Base URL without the `/v1` prefix of the API.
    pub(crate) base_url: String,
    /// Bearer token; absent against an insecure orchestrator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<Token>,
    /// Whether the user said that the token is the master token. A label: it gates nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) master: bool,
    /// Host that lists are narrowed to. A client-side filter, never a placement pin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) active_host: Option<String>,
    /// Keys of other versions.
    #[serde(flatten)]
    pub(crate) other: BTreeMap<String, serde_json::Value>,
}

/// What `connect` learnt and wants remembered.
#[derive(Debug, Clone)]
pub(crate) struct Credentials {
    /// Base URL, already normalised.
    pub(crate) base_url: String,
    /// The token given, if any.
    pub(crate) token: Option<Token>,
    /// `--master`.
    pub(crate) master: bool,
}

/// What adding a context did beside adding it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Added {
    /// No token was given and the one stored for the same URL was kept.
    pub(crate) kept_token: bool,
    /// The URL changed, so the active host (of the other fleet) was dropped.
    pub(crate) dropped_active_host: bool,
}

impl Config {
    /// The context of that name.
    pub(crate) fn context(&self, name: &str) -> Option<&Context> {
        self.contexts.iter().find(|context| context.name == name)
    }

    /// Adds or replaces a context and makes it the current one.
    ///
    /// The active host survives as long as the URL stays the same: under another URL it would name
    /// a host of another fleet. For the same reason a stored token is kept only then.
    pub(crate) fn add(&mut self, name: &str, credentials: Credentials) -> Added {
        let mut added = Added::default();
        self.current_context = Some(name.to_owned());
        let Some(context) = self
            .contexts
            .iter_mut()
            .find(|context| context.name == name)
        else {
            self.contexts.push(Context {
                name: name.to_owned(),
                base_url: credentials.base_url,
                token: credentials.token,
                master: credentials.master,
                active_host: None,
                other: BTreeMap::new(),
            });
            return added;
        };
        let same_url = context.base_url == credentials.base_url;
        match credentials.token {
            None if same_url => added.kept_token = context.token.is_some(),
            token => context.token = token,
        }
        if !same_url {
            added.dropped_active_host = context.active_host.take().is_some();
        }
        // Keeping a token keeps what was said about it.
        context.master = credentials.master || (added.kept_token && context.master);
        context.base_url = credentials.base_url;
        added
    }

    /// Removes a context; removing the current one leaves no current context. False if unknown.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        let before = self.contexts.len();
        self.contexts.retain(|context| context.name != name);
        if self.current_context.as_deref() == Some(name) {
            self.current_context = None;
        }
        self.contexts.len() < before
    }

    /// Sets or clears the active host of a context. False if the context is unknown.
    pub(crate) fn set_active_host(&mut self, name: &str, host: Option<String>) -> bool {
        let found = self
            .contexts
            .iter_mut()
            .find(|context| context.name == name);
        found.map(|context| context.active_host = host).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(url: &str, token: Option<&str>) -> Credentials {
        Credentials {
            base_url: url.to_owned(),
            token: token.map(Token::new),
            master: false,
        }
    }

    #[test]
    fn adding_makes_current_and_replacing_keeps_the_active_host() {
        let mut config = Config::default();
        config.add("prod", credentials("http://a:8080", Some("t1")));
        config.add("test", credentials("http://b:8080", None));
        assert_eq!(config.current_context.as_deref(), Some("test"));
        assert!(config.set_active_host("prod", Some("east-1".into())));

        let added = config.add("prod", credentials("http://a:8080", Some("t2")));

        assert_eq!(added, Added::default());
        let prod = config.context("prod").unwrap();
        assert_eq!(prod.token, Some(Token::new("t2")));
        assert_eq!(prod.active_host.as_deref(), Some("east-1"));
        assert_eq!(config.contexts.len(), 2);
        assert_eq!(config.current_context.as_deref(), Some("prod"));
    }

    #[test]
    fn reconnecting_without_a_token_keeps_the_stored_one_for_the_same_url_only() {
        let mut config = Config::default();
        let mut first = credentials("http://a:8080", Some("t1"));
        first.master = true;
        config.add("prod", first);
        config.set_active_host("prod", Some("east-1".into()));

        let kept = config.add("prod", credentials("http://a:8080", None));
        assert!(kept.kept_token);
        assert!(config.context("prod").unwrap().master);
        assert_eq!(
            config.context("prod").unwrap().token,
            Some(Token::new("t1"))
        );

        let moved = config.add("prod", credentials("http://b:8080", None));
        assert_eq!(
            moved,
            Added {
                kept_token: false,
                dropped_active_host: true
            }
        );
        let prod = config.context("prod").unwrap();
        assert_eq!(
            (prod.token.as_ref(), prod.active_host.as_ref()),
            (None, None)
        );
    }

    #[test]
    fn removing_the_current_context_leaves_none() {
        let mut config = Config::default();
        config.add("a", credentials("http://a", None));
        config.add("b", credentials("http://b", None));
        assert!(!config.remove("zzz"));
        assert!(config.remove("b"));
        assert_eq!(config.current_context, None);
        assert!(config.context("a").is_some());
    }
}

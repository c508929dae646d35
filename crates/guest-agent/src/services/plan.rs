//! What the manifest says of services beyond what compose does with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use serde::Deserialize;

use super::Error;

/// The services by name.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Plan {
    #[serde(default)]
    pub(super) services: BTreeMap<String, Service>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Service {
    depends_on: Vec<String>,
    healthcheck: Option<Healthcheck>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Healthcheck {
    test: Vec<String>,
}

impl Service {
    fn tells_health(&self) -> bool {
        let test = self.healthcheck.as_ref().map(|check| &check.test[..]);
        test.and_then(|test| test.first())
            .is_some_and(|word| word != "NONE")
    }
}

impl Plan {
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read(path).map_err(Error::file("read", path))?;
        Self::parse(&text).map_err(Error::Manifest)
    }

    fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text)
    }

    /// What compose is told beside its file: a service waits until those that it depends on are healthy, if they can
    /// tell. The file itself has the short form, which waits for their start only. `None` if that changes nothing.
    pub(super) fn overrides(&self) -> Option<String> {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let mut text = String::from("services:\n");
        let mut any = false;
        for (name, service) in &self.services {
            let needs = service.depends_on.iter().filter_map(|need| {
                let known = self.services.get(need)?;
                Some((need, known.tells_health()))
            });
            let needs: BTreeMap<_, _> = needs.collect();
            if !needs.values().any(|tells| *tells) {
                continue;
            }
            any = true;
            // Writing to a string cannot fail.
            let _infallible = writeln!(text, "  {}:\n    depends_on:", quoted(name));
            for (need, tells) in needs {
                let when = if tells { "healthy" } else { "started" };
                let _infallible = writeln!(
                    text,
                    "      {}: {{condition: service_{when}}}",
                    quoted(need)
                );
            }
        }
        any.then_some(text)
    }

    /// In groups, in which nobody needs another one of the same or a later group: the order to stop in.
    pub(super) fn stop_order(&self) -> Vec<Vec<&str>> {
        let mut left: BTreeSet<&str> = self.services.keys().map(String::as_str).collect();
        let mut order = Vec::new();
        while !left.is_empty() {
            let needed: BTreeSet<&str> = left
                .iter()
                .filter_map(|name| self.services.get(*name))
                .flat_map(|service| service.depends_on.iter().map(String::as_str))
                .collect();
            let mut free: Vec<&str> = left.difference(&needed).copied().collect();
            if free.is_empty() {
                // In a circle, which compose refuses to start.
                free = left.iter().copied().collect();
            }
            left.retain(|name| !free.contains(name));
            order.push(free);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOP: &str = r#"{"version":"1","machine":{"env":{"A":{"value":"b"}}},"services":{
        "web":{"image":"w","depends_on":["db","cache"]},
        "db":{"image":"d","healthcheck":{"test":["CMD","ready"],"interval":"1s"}},
        "cache":{"image":"c","healthcheck":{"test":["NONE"]}},
        "mail":{"image":"m","depends_on":["cache"]}}}"#;

    #[test]
    fn only_who_needs_a_service_that_tells_its_health_waits_for_it() {
        let plan = Plan::parse(SHOP.as_bytes()).unwrap();
        assert_eq!(
            plan.overrides().unwrap(),
            "services:\n  \"web\":\n    depends_on:\n      \"cache\": {condition: service_started}\n      \
             \"db\": {condition: service_healthy}\n"
        );
        assert_eq!(Plan::default().overrides(), None);
        let plain = r#"{"services":{"a":{"depends_on":["b"]},"b":{}}}"#;
        assert_eq!(Plan::parse(plain.as_bytes()).unwrap().overrides(), None);
    }

    #[test]
    fn who_is_needed_stops_last() {
        let plan = Plan::parse(SHOP.as_bytes()).unwrap();
        assert_eq!(
            plan.stop_order(),
            [vec!["mail", "web"], vec!["cache", "db"]]
        );
        let circle = r#"{"services":{"a":{"depends_on":["b"]},"b":{"depends_on":["a"]},"c":{"depends_on":["a"]}}}"#;
        let plan = Plan::parse(circle.as_bytes()).unwrap();
        assert_eq!(plan.stop_order(), [vec!["c"], vec!["a", "b"]]);
    }
}

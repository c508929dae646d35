//! Reading typed values from the environment.

use std::fmt::Display;
use std::str::FromStr;

use super::ConfigError;

/// The environment of one program: variables of its own carry its prefix.
pub(super) struct Env<'a> {
    prefix: &'static str,
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Env<'a> {
    pub(super) fn new(prefix: &'static str, lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { prefix, lookup }
    }

    /// A variable that all programs share.
    pub(super) fn shared(&self, name: &str) -> Option<String> {
        (self.lookup)(name)
            .map(|v| v.trim().to_owned())
            .filter(|v| !v.is_empty())
    }

    /// A variable of this program.
    pub(super) fn own(&self, name: &str) -> Option<String> {
        self.shared(&self.own_name(name))
    }

    pub(super) fn parse_shared<T: FromStr>(
        &self,
        name: &str,
        default: &str,
        expected: &str,
    ) -> Result<T, ConfigError> {
        let value = self.shared(name).unwrap_or_else(|| default.to_owned());
        value.parse().map_err(|_| invalid(name, &value, expected))
    }

    pub(super) fn parse_own<T: FromStr>(
        &self,
        name: &str,
        default: &str,
        expected: &str,
    ) -> Result<T, ConfigError> {
        self.parse_shared(&self.own_name(name), default, expected)
    }

    pub(super) fn number_shared<T>(&self, name: &str, default: T, min: T) -> Result<T, ConfigError>
    where
        T: FromStr + Display + PartialOrd + Copy,
    {
        let expected = format!("a number of at least {min}");
        let value: T = self.parse_shared(name, &default.to_string(), &expected)?;
        if value < min {
            Err(invalid(name, &value.to_string(), &expected))
        } else {
            Ok(value)
        }
    }

    pub(super) fn number_own<T>(&self, name: &str, default: T, min: T) -> Result<T, ConfigError>
    where
        T: FromStr + Display + PartialOrd + Copy,
    {
        self.number_shared(&self.own_name(name), default, min)
    }

    /// Its full name.
    pub(super) fn own_name(&self, name: &str) -> String {
        format!("{}_{name}", self.prefix)
    }
}

pub(super) fn invalid(variable: &str, value: &str, expected: &str) -> ConfigError {
    ConfigError::Invalid {
        variable: variable.to_owned(),
        value: value.to_owned(),
        expected: expected.to_owned(),
    }
}

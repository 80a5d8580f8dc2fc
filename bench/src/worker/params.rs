//! `key=value` words.

use std::collections::HashMap;
use std::str::FromStr;

/// The words behind the workload.
pub(crate) struct Params(HashMap<String, String>);

impl Params {
    pub(crate) fn parse(words: &[String]) -> Result<Params, String> {
        let pairs = words.iter().map(|word| match word.split_once('=') {
            Some((key, value)) => Ok((key.to_string(), value.to_string())),
            None => Err(format!("{word:?} is not key=value")),
        });
        pairs.collect::<Result<_, _>>().map(Params)
    }

    pub(crate) fn get<T: FromStr>(&self, key: &str, default: T) -> Result<T, String> {
        match self.0.get(key) {
            None => Ok(default),
            Some(value) => value.parse().map_err(|_| format!("{key}={value} makes no sense")),
        }
    }

    pub(crate) fn text<'a>(&'a self, key: &str, default: &'a str) -> &'a str {
        self.0.get(key).map_or(default, String::as_str)
    }
}

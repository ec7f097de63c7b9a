//! The arguments of gpu-align's line in plugstack.conf: the site's word, and
//! the only place from which paths are taken.

use std::path::PathBuf;

use thiserror::Error;

use crate::align::allotment::Reading;
use crate::align::policy::{WordError, Words};
use crate::device::clip;

/// What the site configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// `default=WORDS`: what holds for a job that says nothing.
    pub default: Option<Words>,
    /// `unconstrained=rank|file`: how positions are read on nodes that do not
    /// constrain devices.
    pub unconstrained: Reading,
    /// `gres_conf=PATH`, where it is not beside slurm.conf.
    pub gres_conf: Option<PathBuf>,
}

#[derive(Debug, PartialEq, Eq, Error)]
pub enum SiteError {
    #[error(
        "plugstack.conf: '{0}' is not a key of gpu-align; the keys are default=, unconstrained= and gres_conf="
    )]
    UnknownKey(String),
    #[error("plugstack.conf: {key}={value} is not understood; write {key}={expected}")]
    Value { key: &'static str, value: String, expected: &'static str },
    #[error("plugstack.conf: default=: {0}")]
    Words(#[from] WordError),
}

impl Site {
    /// What holds where nothing is configured.
    pub const NOTHING: Site = Site { default: None, unconstrained: Reading::Rank, gres_conf: None };

    /// Reads the arguments, in which later ones win.
    pub fn parse(arguments: &[String]) -> Result<Site, SiteError> {
        let mut site = Site::NOTHING;
        for argument in arguments {
            let (key, value) = argument.split_once('=').unwrap_or((argument, ""));
            match key {
                "default" => site.default = Some(value.parse()?),
                "unconstrained" => site.unconstrained = reading(value)?,
                "gres_conf" => site.gres_conf = Some(absolute("gres_conf", value)?),
                _ => return Err(SiteError::UnknownKey(clip(argument))),
            }
        }
        Ok(site)
    }
}

fn reading(value: &str) -> Result<Reading, SiteError> {
    match value {
        "rank" => Ok(Reading::Rank),
        "file" => Ok(Reading::File),
        _ => Err(SiteError::Value {
            key: "unconstrained",
            value: clip(value),
            expected: "rank or unconstrained=file",
        }),
    }
}

fn absolute(key: &'static str, value: &str) -> Result<PathBuf, SiteError> {
    let path = PathBuf::from(value);
    match path.is_absolute() {
        true => Ok(path),
        false => Err(SiteError::Value { key, value: clip(value), expected: "/an/absolute/path" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(arguments: &[&str]) -> Result<Site, SiteError> {
        Site::parse(&arguments.iter().map(|a| a.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn every_key_is_read() {
        let site = site(&["default=single,ids=index", "unconstrained=file", "gres_conf=/a/b"]);
        let site = site.unwrap();
        assert_eq!(site.default, Some("single,ids=index".parse().unwrap()));
        assert_eq!(site.unconstrained, Reading::File);
        assert_eq!(site.gres_conf, Some("/a/b".into()));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let refusal = |argument| site(&[argument]).unwrap_err().to_string();
        assert!(refusal("defalt=all").contains("'defalt=all' is not a key"));
        assert!(refusal("unconstrained=maybe").contains("write unconstrained=rank or"));
        assert!(refusal("gres_conf=gres.conf").contains("/an/absolute/path"));
        assert!(refusal("default=singel").ends_with("did you mean 'single'?"));
    }
}

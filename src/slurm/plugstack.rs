//! The arguments of gpu-align's line in plugstack.conf: the site's word, and
//! the only place from which paths are taken.

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::align::allotment::Reading;
use crate::align::policy::{WordError, Words};
use crate::device::clip;
use crate::node::gather::Sources;
use crate::node::record;

/// Where packages put the helper; `helper=PATH` says otherwise.
const HELPER: &str = "/usr/bin/gpu-align";
/// What a launch may wait for the helper; a step whose node has a record never does.
const TIMEOUT: Duration = Duration::from_secs(2);
/// A task that waits a minute for its environment is as good as hung.
const MAX_TIMEOUT: u64 = 60;

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
    /// `record=PATH`, where `gpu-align prolog` is told to leave it elsewhere.
    pub record: Option<PathBuf>,
    /// `helper=PATH`, where gpu-align itself is not in /usr/bin.
    pub helper: Option<PathBuf>,
    /// `timeout=SECONDS`: how long the helper may take.
    pub timeout: Duration,
}

#[derive(Debug, PartialEq, Eq, Error)]
pub enum SiteError {
    #[error(
        "plugstack.conf: '{0}' is not a key of gpu-align; the keys are default=, unconstrained=, gres_conf=, record=, helper= and timeout="
    )]
    UnknownKey(String),
    #[error("plugstack.conf: {key}={value} is not understood; write {key}={expected}")]
    Value { key: &'static str, value: String, expected: &'static str },
    #[error("plugstack.conf: default=: {0}")]
    Words(#[from] WordError),
}

impl Site {
    /// What holds where nothing is configured.
    pub const NOTHING: Site = Site {
        default: None,
        unconstrained: Reading::Rank,
        gres_conf: None,
        record: None,
        helper: None,
        timeout: TIMEOUT,
    };

    /// Where the plugin looks for what the driver does not say.
    pub fn sources(&self) -> Sources {
        Sources {
            record: self.record.clone().unwrap_or_else(|| record::PATH.into()),
            helper: self.helper.clone().unwrap_or_else(|| HELPER.into()),
            timeout: self.timeout,
        }
    }

    /// Reads the arguments, in which later ones win.
    pub fn parse(arguments: &[String]) -> Result<Site, SiteError> {
        let mut site = Site::NOTHING;
        for argument in arguments {
            let (key, value) = argument.split_once('=').unwrap_or((argument, ""));
            match key {
                "default" => site.default = Some(value.parse()?),
                "unconstrained" => site.unconstrained = reading(value)?,
                "gres_conf" => site.gres_conf = Some(absolute("gres_conf", value)?),
                "record" => site.record = Some(absolute("record", value)?),
                "helper" => site.helper = Some(absolute("helper", value)?),
                "timeout" => site.timeout = timeout(value)?,
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

fn timeout(value: &str) -> Result<Duration, SiteError> {
    match value.parse() {
        Ok(seconds) if (1..=MAX_TIMEOUT).contains(&seconds) => Ok(Duration::from_secs(seconds)),
        _ => Err(SiteError::Value {
            key: "timeout",
            value: value.to_owned(),
            expected: "a whole number of seconds from 1 to 60",
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
        assert_eq!(site.sources(), Site::NOTHING.sources());
    }

    #[test]
    fn where_the_helper_and_its_record_are_is_the_sites_word() {
        let site = site(&["record=/r/n.json", "helper=/h/gpu-align", "timeout=7"]).unwrap();
        let timeout = Duration::from_secs(7);
        let sources =
            Sources { record: "/r/n.json".into(), helper: "/h/gpu-align".into(), timeout };
        assert_eq!(site.sources(), sources);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let refusal = |argument| site(&[argument]).unwrap_err().to_string();
        assert!(refusal("defalt=all").contains("'defalt=all' is not a key"));
        assert!(refusal("unconstrained=maybe").contains("write unconstrained=rank or"));
        assert!(refusal("gres_conf=gres.conf").contains("/an/absolute/path"));
        assert!(refusal("helper=gpu-align").contains("write helper=/an/absolute/path"));
        for timeout in ["timeout=0", "timeout=61", "timeout=1.5", "timeout="] {
            assert!(refusal(timeout).contains("from 1 to 60"), "{timeout}");
        }
        assert!(refusal("default=singel").ends_with("did you mean 'single'?"));
    }
}

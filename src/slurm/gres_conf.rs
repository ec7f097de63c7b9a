//! gres.conf as Slurm reads it: this node's `Name=gpu` records, in Slurm's order.
//!
//! Follows `_parse_gres_config` and `gres_g_node_config_load`
//! (`src/interfaces/gres.c`, before 22.05 `src/common/gres.c`). Two things there
//! surprise: all lines that begin with `Name=` come before all that begin with
//! `NodeName=`, wherever they stand in the file; and slurm.conf's `Gres=` of the
//! node decides how many cards count and in which order their types come
//! (`_merge_config`).

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::conf::{self, ConfError, Line};
use super::hostlist::{self, HostlistError};
use crate::device::clip;

/// More positions than any node has; a list beyond it is a mistake.
pub const MAX_POSITIONS: usize = 1024;
const MAX_FILES_OF_ONE: usize = 16;

#[derive(Debug, Error)]
pub enum GresError {
    #[error(transparent)]
    Conf(#[from] ConfError),
    #[error("{}:{line}: '{value}': {advice}", .path.display())]
    Line { path: PathBuf, line: usize, value: String, advice: &'static str },
    #[error("{}:{line}: '{value}': {source}; list this node's device files only", .path.display())]
    List { path: PathBuf, line: usize, value: String, source: HostlistError },
    #[error("{} gives node {node} no GPUs, neither by File= nor by AutoDetect; name each card's file, with the Type= of slurm.conf's Gres= if that has one, or write AutoDetect=nvml", .conf.display())]
    NoGpus { conf: PathBuf, node: String },
    #[error("{}: AutoDetect finds {found} of the {wanted} GPUs that slurm.conf counts; look for a lost card", .conf.display())]
    CardsGone { conf: PathBuf, wanted: usize, found: usize },
}

impl GresError {
    fn line(line: &Line, value: &str, advice: &'static str) -> GresError {
        GresError::Line {
            path: line.path.to_path_buf(),
            line: line.number,
            value: clip(value),
            advice,
        }
    }
}

/// Who names the node's cards to slurmd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AutoDetect {
    /// gres.conf alone, in the order written.
    #[default]
    Off,
    /// NVML: PCI order, slices after whole cards.
    Nvml,
    /// `/proc/driver/nvidia`, from 24.11: order of the files' names.
    Nvidia,
}

/// A `Name=gpu` line that holds on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// One element a device; several files in it under `MultipleFiles=`.
    pub devices: Vec<Vec<String>>,
    /// As slurmd counts the line: its devices, or `Count=` without any.
    pub count: usize,
    pub kind: Option<String>,
    /// Place of the card itself (-1) in `Links=`.
    pub link: Option<usize>,
}

/// What gres.conf says about this node's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GresConf {
    pub autodetect: AutoDetect,
    pub records: Vec<Record>,
}

impl GresConf {
    pub fn parse(lines: &[Line], node: &str) -> Result<GresConf, GresError> {
        let mut named = Vec::new();
        let mut by_node = Vec::new();
        let (mut global, mut local) = (None, None);
        let mut total = 0;
        for line in lines {
            let pairs = conf::pairs(&line.text).map_err(|rest| {
                GresError::line(line, rest, "slurmd reads Key=value pairs only; correct it")
            })?;
            let Some(&(key, first)) = pairs.first() else {
                continue;
            };
            let records = if key.eq_ignore_ascii_case("AutoDetect") {
                global = Some(detect(line, first)?);
                continue;
            } else if key.eq_ignore_ascii_case("Name") {
                &mut named
            } else if key.eq_ignore_ascii_case("NodeName") {
                if !names(line, first, node)? {
                    continue;
                }
                // In-line AutoDetect counts behind NodeName= only.
                if let Some(kind) = conf::value(&pairs, "AutoDetect") {
                    local = local.or(Some(detect(line, kind)?));
                }
                &mut by_node
            } else {
                let advice = "a line of gres.conf begins with Name=, NodeName= or AutoDetect=";
                return Err(GresError::line(line, key, advice));
            };
            if let Some(record) = record(line, &pairs)? {
                total += record.count.max(1);
                if total > MAX_POSITIONS {
                    let advice = "more GPUs than a node can have; list this node's only";
                    return Err(GresError::line(line, first, advice));
                }
                records.push(record);
            }
        }
        named.append(&mut by_node);
        Ok(GresConf { autodetect: local.or(global).unwrap_or_default(), records: named })
    }
}

fn names(line: &Line, list: &str, node: &str) -> Result<bool, GresError> {
    hostlist::contains(list, node).map_err(|source| list_error(line, list, source))
}

fn list_error(line: &Line, value: &str, source: HostlistError) -> GresError {
    GresError::List { path: line.path.to_path_buf(), line: line.number, value: clip(value), source }
}

/// As `_handle_autodetect_flags`: a part of the value is enough, and an
/// unknown value is as good as none.
fn detect(line: &Line, value: &str) -> Result<AutoDetect, GresError> {
    let value = value.to_ascii_lowercase();
    let has = |word: &str| value.contains(word);
    if has("nvml") {
        Ok(AutoDetect::Nvml)
    } else if has("rsmi") || has("oneapi") || has("nrt") {
        let advice = "this AutoDetect knows no NVIDIA cards; write AutoDetect=nvml";
        Err(GresError::line(line, &value, advice))
    } else if has("nvidia") {
        Ok(AutoDetect::Nvidia)
    } else if has("full") {
        let advice = "the order of the cards depends on what slurmd finds; write AutoDetect=nvml";
        Err(GresError::line(line, &value, advice))
    } else {
        Ok(AutoDetect::Off)
    }
}

fn record(line: &Line, pairs: &[(&str, &str)]) -> Result<Option<Record>, GresError> {
    let value = |key| conf::value(pairs, key);
    if !value("Name").is_some_and(|name| name.eq_ignore_ascii_case("gpu")) {
        return Ok(None);
    }
    let expand = |list: &str, limit| {
        hostlist::expand(list, limit).map_err(|source| list_error(line, list, source))
    };
    let mut devices = Vec::new();
    if let Some(list) = value("File").or(value("Files")) {
        let files = expand(list, MAX_POSITIONS)?;
        devices = files.into_iter().map(|file| vec![file]).collect();
    } else if let Some(list) = value("MultipleFiles") {
        devices = vec![expand(list, MAX_FILES_OF_ONE)?];
    }
    let count = match (devices.len(), value("Count")) {
        (0, Some(text)) => count(text)
            .ok_or_else(|| GresError::line(line, text, "write Count= as a plain number of GPUs"))?,
        (0, None) => 1,
        (found, _) => found,
    };
    let kind = value("Type");
    // Every device of the line keeps a copy of it.
    if let Some(long) = kind.filter(|kind| kind.len() > hostlist::MAX_NAME) {
        return Err(GresError::line(line, long, "write a shorter Type="));
    }
    Ok(Some(Record {
        devices,
        count,
        kind: kind.map(str::to_owned),
        link: value("Links").or(value("Link")).and_then(own_link),
    }))
}

fn count(text: &str) -> Option<usize> {
    let number = text.parse().ok()?;
    (number <= MAX_POSITIONS).then_some(number)
}

/// As `gres_links_validate`: the one -1 among the numbers, or the whole is ignored.
fn own_link(links: &str) -> Option<usize> {
    let numbers: Option<Vec<i64>> = links
        .split(',')
        .filter(|token| !token.is_empty())
        .map(|token| token.parse().ok())
        .collect();
    let numbers = numbers?;
    let mut own = (0..numbers.len()).filter(|&at| numbers[at] == -1);
    own.next().filter(|_| own.next().is_none())
}

/// The node's GPUs by slurm.conf's `Gres=`: type and count, in its order.
pub(super) type NodeGres = Vec<(Option<String>, usize)>;

/// Looks the node up in slurm.conf; `None` when it is not there with GPUs, as
/// a dynamic node is not.
pub(super) fn node_gres(lines: &[Line], node: &str) -> Option<NodeGres> {
    named_gres(lines, node).filter(|gpus| !gpus.is_empty())
}

/// The same, with none for a node that slurm.conf names without GPUs; `None`
/// when it does not name the node.
pub(super) fn named_gres(lines: &[Line], node: &str) -> Option<NodeGres> {
    let mut default = None;
    for line in lines {
        let Ok(pairs) = conf::pairs(&line.text) else {
            continue;
        };
        let name = match pairs.first() {
            Some(&(key, name)) if key.eq_ignore_ascii_case("NodeName") => name,
            _ => continue,
        };
        let gres = conf::value(&pairs, "Gres");
        if name.eq_ignore_ascii_case("DEFAULT") {
            default = gres.or(default);
        } else if hostlist::contains(name, node) == Ok(true) {
            return Some(gres.or(default).map(gpus).unwrap_or_default());
        }
    }
    None
}

/// `gpu:a100:4(S:0-1),gpu:v100:2,nic:1` and the like.
fn gpus(gres: &str) -> NodeGres {
    let mut gpus: NodeGres = Vec::new();
    let mut room = MAX_POSITIONS;
    for item in gres.split(',') {
        let item = item.split('(').next().unwrap_or_default();
        let mut words = item.split(':').filter(|&word| word != "no_consume");
        if words.next() != Some("gpu") {
            continue;
        }
        let words: Vec<&str> = words.collect();
        let (kind, number) = match words[..] {
            [] => (None, 1),
            [only] => match count(only) {
                Some(number) => (None, number),
                None => (Some(only.to_owned()), 1),
            },
            [kind, number, ..] => (Some(kind.to_owned()), count(number).unwrap_or(0)),
        };
        let endless = kind.as_ref().is_some_and(|kind| kind.len() > hostlist::MAX_NAME);
        let number = if endless { 0 } else { number.min(room) };
        room -= number;
        if number == 0 {
            continue;
        }
        match gpus.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, total)) => *total += number,
            None => gpus.push((kind, number)),
        }
    }
    gpus
}

/// As `_merge_config`: slurm.conf's counts and order of types over gres.conf's
/// records. What gres.conf has beyond them is cut off at the end, and comes
/// second; what it lacks is added without a file, for AutoDetect to fill.
pub(super) fn merged(mut records: Vec<Record>, node: &NodeGres) -> (Vec<Record>, Vec<Record>) {
    let mut list = Vec::new();
    let mut surplus = Vec::new();
    for (kind, count) in node {
        let mut missing = *count;
        while missing > 0 {
            let found = records.iter().position(|record| match kind {
                None => true,
                Some(kind) => same(record.kind.as_deref(), kind),
            });
            let Some(at) = found else {
                list.push(Record { count: missing, kind: kind.clone(), ..Record::default() });
                break;
            };
            let mut record = records.remove(at);
            if kind.is_none() {
                record.kind = None;
            }
            record.count = record.count.min(missing);
            if record.devices.len() > record.count {
                let devices = record.devices.split_off(record.count);
                surplus.push(Record { devices, ..Record::default() });
            }
            missing -= record.count;
            if record.count == 0 {
                continue;
            }
            list.push(record);
        }
    }
    surplus.append(&mut records);
    (list, surplus)
}

fn same(kind: Option<&str>, wanted: &str) -> bool {
    kind.is_some_and(|kind| kind.eq_ignore_ascii_case(wanted))
}

/// The file in whose folder gres.conf always lies.
pub(super) fn slurm_conf(gres_conf: &Path) -> PathBuf {
    gres_conf.with_file_name("slurm.conf")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<GresConf, GresError> {
        GresConf::parse(&lines(text), "n1")
    }

    fn lines(text: &str) -> Vec<Line> {
        let mut open = |_: &Path| Ok(text.as_bytes().to_vec());
        conf::read_with(Path::new("/etc/slurm/gres.conf"), &mut open).unwrap()
    }

    fn files(text: &str) -> Vec<String> {
        let conf = parse(text).unwrap();
        let devices = conf.records.into_iter().flat_map(|record| record.devices);
        devices.map(|files| files.join("+")).collect()
    }

    #[test]
    fn a_type_is_short_since_every_device_keeps_a_copy() {
        let long = "x".repeat(1000);
        let error = parse(&format!("Name=gpu Count=1024 Type={long}")).unwrap_err().to_string();
        assert!(error.ends_with("write a shorter Type=") && error.len() < 200, "{error}");
        assert_eq!(gpus(&format!("gpu:{long}:1024,gpu:a:1")), [(Some("a".to_owned()), 1)]);
    }

    #[test]
    fn name_lines_come_before_nodename_lines() {
        let text = "NodeName=n[1-4] Name=gpu File=/dev/a\nNodeName=x Name=gpu File=/dev/b\n\
                    name=GPU type=t file=/dev/c\nName=nic File=/dev/d";
        assert_eq!(files(text), ["/dev/c", "/dev/a"]);
    }

    #[test]
    fn one_device_of_several_files_is_one_position() {
        let text = "Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[21-22]";
        let one = "/dev/nvidia0+/dev/nvidia-caps/nvidia-cap21+/dev/nvidia-caps/nvidia-cap22";
        assert_eq!(files(text), [one]);
    }

    #[test]
    fn the_nodes_own_autodetect_wins_over_the_global_one() {
        let kind = |text| parse(text).unwrap().autodetect;
        assert_eq!(kind("AutoDetect=nvml"), AutoDetect::Nvml);
        assert_eq!(kind("autodetect=NVIDIA"), AutoDetect::Nvidia);
        assert_eq!(kind("AutoDetect=nvml\nNodeName=n1 AutoDetect=off"), AutoDetect::Off);
        assert_eq!(kind("NodeName=n1 AutoDetect=nvml\nAutoDetect=off"), AutoDetect::Nvml);
        assert_eq!(kind("NodeName=n2 AutoDetect=nvml"), AutoDetect::Off);
        // slurmd: "In-line AutoDetect requires NodeName to take effect".
        assert_eq!(kind("Name=gpu AutoDetect=nvml File=/dev/a"), AutoDetect::Off);
        assert!(parse("AutoDetect=rsmi").is_err());
        assert!(parse("AutoDetect=full").is_err());
    }

    #[test]
    fn an_error_names_path_line_and_value() {
        let message = |text| parse(text).unwrap_err().to_string();
        assert_eq!(
            message("#\nFile=/dev/nvidia0 Name=gpu"),
            "/etc/slurm/gres.conf:2: 'File': a line of gres.conf begins with Name=, NodeName= or AutoDetect="
        );
        assert_eq!(
            message("Name=gpu File=/dev/nvidia[0-4294967295]"),
            "/etc/slurm/gres.conf:1: '/dev/nvidia[0-4294967295]': more than 1024 names; list this node's device files only"
        );
        assert_eq!(
            message("Name=gpu File=/dev/nvidia[3-0]"),
            "/etc/slurm/gres.conf:1: '/dev/nvidia[3-0]': '3-0' is not a list like n[1-3,7]; list this node's device files only"
        );
        assert!(message("Name=gpu Count=9999999999").contains("9999999999"));
        assert!(message("Name=gpu oops").contains("'oops'"));
        let many = "Name=gpu File=/dev/nvidia[0-99]\n".repeat(11);
        assert!(message(&many).starts_with("/etc/slurm/gres.conf:11: "));
    }

    #[test]
    fn links_name_the_card_itself_once() {
        assert_eq!(own_link("0,-1,4"), Some(1));
        for wrong in ["", "0,0", "-1,-1", "a,-1"] {
            assert_eq!(own_link(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn slurm_conf_says_how_many_and_which_types_first() {
        let gres = |text| node_gres(&lines(text), "n1");
        assert_eq!(gres("NodeName=n[1-2] CPUs=8 Gres=gpu:8"), Some(vec![(None, 8)]));
        assert_eq!(
            gres("NodeName=DEFAULT Gres=gpu:b:2(S:0-1),nic:1,gpu:a:1,gpu:b:1\nNodeName=n1"),
            Some(vec![(Some("b".into()), 3), (Some("a".into()), 1)])
        );
        assert_eq!(gres("NodeName=n1 Gres=gpu:a100"), Some(vec![(Some("a100".into()), 1)]));
        assert_eq!(gres("NodeName=n1 Gres=nic:1"), None);
        assert_eq!(named_gres(&lines("NodeName=n1 Gres=nic:1"), "n1"), Some(vec![]));
        assert_eq!(named_gres(&lines("NodeName=n1 CPUs=8"), "n1"), Some(vec![]));
        assert_eq!(named_gres(&lines("NodeName=n2 Gres=gpu:1"), "n1"), None);
        assert_eq!(gres("NodeName=n2 Gres=gpu:1\nPartitionName=p Nodes=n1 oops"), None);
    }
}

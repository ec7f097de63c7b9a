//! CUDA_VISIBLE_DEVICES as the driver reads it, with the reason why its list
//! ends.
//!
//! Measured on a real card (see `tests/sim/cuda/tests/visible.rs`): fields are
//! taken in order up to the first that names nothing, in silence; a device
//! named twice before that makes the whole list void; the first field decides
//! whether the list holds indices or UUIDs.

use std::fmt;

use crate::device::clip;

/// A device that a list can name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The names by which the driver knows it: a card's UUID, a slice's two
    /// spellings; a card in MIG mode stands for its first slice.
    pub names: Vec<String>,
}

/// What a list is read against.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// What this process may open.
    pub devices: Vec<Named>,
    /// The devices that indices count, as places in `devices`, in CUDA's order.
    pub numbered: Vec<usize>,
    /// UUIDs of the node's devices that this process may not open.
    pub elsewhere: Vec<String>,
}

/// The driver's reading of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Places in [`Known::devices`], in the order in which CUDA counts them.
    pub chosen: Vec<usize>,
    pub end: End,
    /// Entries that are taken but are not what they look like.
    pub remarks: Vec<Remark>,
}

/// Where the list ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Every entry was taken.
    Whole,
    /// The entry at `at` (from 0) names nothing: it and all that follow are
    /// passed over in silence.
    At { at: usize, of: usize, field: String, why: Why },
    /// The entry at `at` names a device a second time: CUDA finds none at all.
    Void { at: usize, field: String, first: usize },
}

/// Why an entry names nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// Nothing between two commas, or the whole value is empty.
    Empty,
    Index {
        index: i64,
        count: usize,
    },
    NoNumber,
    /// The first entry was of the other kind.
    OtherKind {
        list_of_uuids: bool,
    },
    /// `gpu-`: the driver looks for capitals.
    Prefix,
    /// No device of the node has such a UUID.
    Unknown,
    /// The node has it; this process may not open it.
    OutOfReach,
    Ambiguous {
        count: usize,
    },
}

/// An entry that is taken, but not for what it looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remark {
    ReadAs { at: usize, field: String, index: usize },
    ShortUuid { at: usize, field: String },
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Remark::ReadAs { at, field, index } => {
                write!(f, "entry {at} '{field}' is read as {index}")
            }
            Remark::ShortUuid { at, field } => {
                write!(
                    f,
                    "entry {at} '{field}' is the beginning of a UUID; some programs want it whole"
                )
            }
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Why::Empty => f.write_str("it is empty"),
            Why::Index { index, .. } if *index < 0 => {
                f.write_str("a negative number ends the list")
            }
            Why::Index { count: 0, .. } => f.write_str("this process can open no card"),
            Why::Index { index, count: 1 } => {
                write!(f, "index {index} is out of range: 1 card can be opened, index 0")
            }
            Why::Index { index, count } => write!(
                f,
                "index {index} is out of range: {count} cards can be opened, indices 0-{}",
                count - 1
            ),
            Why::NoNumber => f.write_str("it is neither a number nor GPU-… or MIG-…"),
            Why::OtherKind { list_of_uuids: true } => {
                f.write_str("it is no UUID, and the first entry is one: write one kind per list")
            }
            Why::OtherKind { list_of_uuids: false } => f.write_str(
                "it is a UUID, and the first entry is an index: write one kind per list",
            ),
            Why::Prefix => f.write_str("the driver knows GPU- and MIG- in capitals only"),
            Why::Unknown => f.write_str("no device of this node has that UUID"),
            Why::OutOfReach => {
                f.write_str("that device is on this node, but this process may not open it")
            }
            Why::Ambiguous { count } => write!(f, "{count} devices' UUIDs begin like that"),
        }
    }
}

/// Reads a list; `None`, an unset variable, selects all that indices count.
pub fn read(list: Option<&str>, known: &Known) -> Reading {
    let mut reading = Reading { chosen: Vec::new(), end: End::Whole, remarks: Vec::new() };
    let Some(list) = list else {
        reading.chosen.clone_from(&known.numbered);
        return reading;
    };
    let uuids = uuid_part(list).is_some();
    let fields: Vec<&str> = list.split(',').collect();
    for (at, &field) in fields.iter().enumerate() {
        let shown = clip(field);
        match entry(field, uuids, known) {
            Ok((device, remark)) => {
                if let Some(first) = reading.chosen.iter().position(|&d| d == device) {
                    reading.chosen.clear();
                    reading.remarks.clear();
                    reading.end = End::Void { at, field: shown, first };
                    return reading;
                }
                reading.chosen.push(device);
                reading.remarks.extend(remark.map(|remark| remark(at, shown)));
            }
            Err(why) => {
                reading.end = End::At { at, of: fields.len(), field: shown, why };
                break;
            }
        }
    }
    reading
}

type MakeRemark = Box<dyn Fn(usize, String) -> Remark>;

/// The device that one field names.
fn entry(field: &str, uuids: bool, known: &Known) -> Result<(usize, Option<MakeRemark>), Why> {
    match (uuid_part(field), uuids) {
        (Some(part), true) => by_name(field, part, known),
        (None, false) => by_index(field, known),
        _ if field.trim().is_empty() => Err(Why::Empty),
        _ => Err(Why::OtherKind { list_of_uuids: uuids }),
    }
}

fn by_index(field: &str, known: &Known) -> Result<(usize, Option<MakeRemark>), Why> {
    if field.trim().is_empty() {
        return Err(Why::Empty);
    }
    let Some((number, plain)) = strtoul(field) else {
        let prefixed = field.get(..4).is_some_and(|kind| {
            kind.eq_ignore_ascii_case("GPU-") || kind.eq_ignore_ascii_case("MIG-")
        });
        return Err(if prefixed { Why::Prefix } else { Why::NoNumber });
    };
    let index = usize::try_from(number).ok();
    let device = index.and_then(|index| known.numbered.get(index).copied());
    let device = device.ok_or(Why::Index { index: number.into(), count: known.numbered.len() })?;
    let index = index.unwrap_or_default();
    let remark: Option<MakeRemark> = (!plain)
        .then(|| Box::new(move |at, field| Remark::ReadAs { at, field, index }) as MakeRemark);
    Ok((device, remark))
}

fn by_name(field: &str, part: &str, known: &Known) -> Result<(usize, Option<MakeRemark>), Why> {
    let digits = hex_digits(part);
    let is = |name: &String| {
        let own = uuid_part(name).and_then(hex_digits);
        let begins = digits.as_ref().zip(own).is_some_and(|(digits, own)| own.starts_with(digits));
        begins || (name.contains('/') && name.eq_ignore_ascii_case(field))
    };
    let mut matches = Vec::new();
    for (place, device) in known.devices.iter().enumerate() {
        for name in device.names.iter().filter(|name| is(name)) {
            matches.push((place, name));
        }
    }
    match matches[..] {
        [(place, name)] => {
            let short = !name.contains('/') && digits.is_some_and(|digits| digits.len() < WHOLE);
            let remark: Option<MakeRemark> =
                short.then(|| Box::new(|at, field| Remark::ShortUuid { at, field }) as MakeRemark);
            Ok((place, remark))
        }
        [] if known.elsewhere.iter().any(is) => Err(Why::OutOfReach),
        [] => Err(Why::Unknown),
        _ => Err(Why::Ambiguous { count: matches.len() }),
    }
}

fn uuid_part(field: &str) -> Option<&str> {
    field.strip_prefix("GPU-").or_else(|| field.strip_prefix("MIG-"))
}

/// Hexadecimal digits of a whole UUID.
const WHOLE: usize = 32;

/// The digits of a UUID or its beginning, hyphens skipped; after the 32nd
/// anything may follow, before it nothing but digits and hyphens.
fn hex_digits(part: &str) -> Option<String> {
    let mut digits = String::new();
    for c in part.chars().filter(|&c| c != '-') {
        if digits.len() == WHOLE {
            break;
        }
        digits.push(c.is_ascii_hexdigit().then(|| c.to_ascii_lowercase())?);
    }
    (!part.is_empty()).then_some(digits)
}

/// As C's strtoul reads it, cut to a 32-bit int, and whether that is what the
/// text looks like.
fn strtoul(field: &str) -> Option<(i32, bool)> {
    let trimmed = field.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let (negative, unsigned) = match trimmed.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, trimmed.strip_prefix('+').unwrap_or(trimmed)),
    };
    let end = unsigned.find(|c: char| !c.is_ascii_digit()).unwrap_or(unsigned.len());
    if end == 0 {
        return None;
    }
    let number = match unsigned[..end].parse::<u64>() {
        Ok(magnitude) if negative => magnitude.wrapping_neg(),
        Ok(magnitude) => magnitude,
        Err(_) => u64::MAX,
    } as i32;
    let plain = field.trim() == number.to_string();
    Some((number, plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn uuid(rank: usize) -> String {
        format!("GPU-00000000-0004-4000-8000-00000000000{rank}")
    }

    fn inv4() -> Known {
        let named = |rank| Named { names: vec![uuid(rank)] };
        Known {
            devices: (0..4).map(named).collect(),
            numbered: vec![0, 1, 2, 3],
            elsewhere: Vec::new(),
        }
    }

    fn reading(list: &str) -> Reading {
        read(Some(list), &inv4())
    }

    fn why(list: &str) -> String {
        match reading(list).end {
            End::Whole => String::new(),
            End::At { why, .. } => why.to_string(),
            End::Void { first, at, .. } => format!("void {first} {at}"),
        }
    }

    #[test]
    fn fc_30_every_list_is_read_as_the_driver_reads_it() {
        assert_eq!(read(None, &inv4()).chosen, [0, 1, 2, 3]);
        let rows: [(&str, &[usize], &str); 14] = [
            ("", &[], "it is empty"),
            ("-1", &[], "a negative number ends the list"),
            ("NoDevFiles", &[], "it is neither a number nor GPU-… or MIG-…"),
            ("none", &[], "it is neither a number nor GPU-… or MIG-…"),
            ("0,2,-1,1", &[0, 2], "a negative number ends the list"),
            ("0,1,9,2", &[0, 1], "index 9 is out of range: 4 cards can be opened, indices 0-3"),
            ("0,1,2,3,0", &[], "void 0 4"),
            ("1x,2yz", &[1, 2], ""),
            ("0,1,", &[0, 1], "it is empty"),
            ("0, 1", &[0, 1], ""),
            (&uuid(2), &[2], ""),
            ("GPU-00000000-0004", &[], "4 devices' UUIDs begin like that"),
            (
                "gpu-00000000-0004-4000-8000-000000000002",
                &[],
                "the driver knows GPU- and MIG- in capitals only",
            ),
            (
                "GPU-ffffffff-0004-4000-8000-000000000002",
                &[],
                "no device of this node has that UUID",
            ),
        ];
        for (list, chosen, reason) in rows {
            assert_eq!(reading(list).chosen, chosen, "[{list}]");
            assert_eq!(why(list), reason, "[{list}]");
        }
        assert_eq!(why(&format!("{},{}", uuid(1), uuid(1))), "void 0 1");
        assert!(why(&format!("{},1", uuid(1))).starts_with("it is no UUID"));
        assert!(why(&format!("1,{}", uuid(1))).starts_with("it is a UUID"));
    }

    #[test]
    fn a_card_of_another_job_is_told_from_a_wrong_uuid() {
        let mut known = inv4();
        known.elsewhere = vec![known.devices.remove(0).names.remove(0)];
        known.numbered = vec![0, 1, 2];
        let reading = read(Some(&uuid(0)), &known);
        assert!(matches!(reading.end, End::At { why: Why::OutOfReach, .. }));
    }

    #[test]
    fn what_is_taken_for_something_else_is_remarked() {
        assert_eq!(reading("1x").remarks[0].to_string(), "entry 0 '1x' is read as 1");
        assert_eq!(reading(" 1").remarks, []);
        let short = "GPU-00000000-0004-4000-8000-00000000000";
        let mut one = inv4();
        one.devices.truncate(1);
        assert!(read(Some(short), &one).remarks[0].to_string().contains("beginning of a UUID"));
    }

    proptest! {
        /// The stand-in for libcuda holds the measured rows: no list may be read otherwise.
        #[test]
        fn the_stand_in_reads_alike(list in "(([0-4 x+-]{0,3}|GPU-0{0,8}[-04]{0,6}|GPU-00000000-0004-4000-8000-00000000000[0-4]),?){0,5}") {
            let cards = (0..4).map(|rank| sim_node::Card {
                pci: format!("0000:{}1:00.0", 1 + 2 * rank).parse().unwrap(),
                minor: rank,
                uuid: uuid(rank as usize),
                ..sim_node::Card::default()
            });
            let node = sim_node::Node { cards: cards.collect(), ..sim_node::Node::default() };
            let theirs = sim_cuda::enumerate(&node, &|_| true, Some("PCI_BUS_ID"), Some(&list));
            let theirs: Vec<usize> =
                theirs.unwrap_or_default().iter().map(|entry| entry.minor as usize).collect();
            prop_assert_eq!(reading(&list).chosen, theirs);
        }
    }
}

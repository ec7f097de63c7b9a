//! What was asked for: one grammar for `--gpu-align=WORDS`, `SLURM_GPU_ALIGN`,
//! plugstack.conf's `default=` and the `gpu-align` commands.
//!
//! [`Words`] is what one place says, [`Policy`] what holds after all places
//! were heard: option over environment over site default, later words win.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::device::{Uuid, clip};

/// Longer than any sensible request; a bound on what a user can make us parse.
const MAX_LENGTH: usize = 4096;
const MAX_MAP: usize = 256;

/// What each task is to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Do nothing.
    Off,
    /// Slurm's per-task binding if there is one, otherwise `All`.
    Auto,
    /// Every task sees all devices, own device of local rank r at index r.
    All,
    /// Every task sees its own device(s) only.
    Single,
    /// Every task sees all devices, its own first.
    Rotate,
}

/// Which device is meant for which rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// By PCI address, as nvidia-smi lists them.
    Pci,
    /// As Slurm lists them: by position in the gres list.
    Slurm,
    /// An explicit list, each device once.
    Map(Vec<Place>),
}

/// One device of an explicit list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Place in PCI order within the task's devices, from 0.
    Index(usize),
    /// A card's or a slice's own.
    Uuid(Uuid),
}

/// Form of CUDA_VISIBLE_DEVICES.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// Full-length UUIDs, right wherever the list is read.
    Uuid,
    /// Counts the reachable cards in PCI order.
    Index,
}

/// What the user's log gets to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Print {
    /// One block per node.
    Node,
    /// One line per task, in its own stderr.
    Task,
    /// One JSON line per task, and one per note.
    Json,
    /// Nothing, but why `strict` ends a task.
    Off,
}

macro_rules! words {
    ($type:ty { $($variant:path => $word:literal),* $(,)? }) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.pad(match self { $($variant { .. } => $word),* })
            }
        }
    };
}
words!(Mode {
    Mode::Off => "off", Mode::Auto => "auto", Mode::All => "all",
    Mode::Single => "single", Mode::Rotate => "rotate",
});
words!(Order { Order::Pci => "pci", Order::Slurm => "slurm", Order::Map => "map" });
words!(Ids { Ids::Uuid => "uuid", Ids::Index => "index" });

type Apply = fn(&mut Words);

/// The words that stand alone or are a key and its value; `map=` is parsed apart.
const WORDS: [(&str, Apply); 15] = [
    ("off", |w| w.mode = Some(Mode::Off)),
    ("auto", |w| w.mode = Some(Mode::Auto)),
    ("all", |w| w.mode = Some(Mode::All)),
    ("single", |w| w.mode = Some(Mode::Single)),
    ("rotate", |w| w.mode = Some(Mode::Rotate)),
    ("order=pci", |w| w.order = Some(Order::Pci)),
    ("order=slurm", |w| w.order = Some(Order::Slurm)),
    ("ids=uuid", |w| w.ids = Some(Ids::Uuid)),
    ("ids=index", |w| w.ids = Some(Ids::Index)),
    ("print=node", |w| w.print = Some(Print::Node)),
    ("print=task", |w| w.print = Some(Print::Task)),
    ("print=json", |w| w.print = Some(Print::Json)),
    ("print=off", |w| w.print = Some(Print::Off)),
    ("strict", |w| w.strict = true),
    ("map=", |_| ()),
];

/// What one place asks for; `None` is "says nothing about it".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    mode: Option<Mode>,
    order: Option<Order>,
    ids: Option<Ids>,
    print: Option<Print>,
    strict: bool,
}

#[derive(Debug, PartialEq, Eq, Error)]
pub enum WordError {
    #[error("'{word}' is not a word of gpu-align; did you mean '{nearest}'?")]
    Unknown { word: String, nearest: &'static str },
    #[error("'{0}' stands alone; a list of devices belongs to map=, like map=2,0,1")]
    StrayPlace(String),
    #[error("map= lists no device; write places or UUIDs, like map=2,0,1")]
    EmptyMap,
    #[error(
        "map= lists '{0}' twice; list each device once, more ranks than devices are laid out in blocks"
    )]
    RepeatedPlace(String),
    #[error("map= lists more than {MAX_MAP} devices; list each device of the step once")]
    LongMap,
    #[error("the words are longer than {MAX_LENGTH} characters; shorten them")]
    TooLong,
}

impl FromStr for Words {
    type Err = WordError;

    /// Parses words separated by commas; empty words are passed over, so that
    /// the empty text is a valid request that says nothing.
    fn from_str(text: &str) -> Result<Words, WordError> {
        if text.len() > MAX_LENGTH {
            return Err(WordError::TooLong);
        }
        let mut words = Words::default();
        let mut tokens = text.split(',').map(str::trim).filter(|t| !t.is_empty()).peekable();
        while let Some(token) = tokens.next() {
            if let Some(first) = token.strip_prefix("map=") {
                let mut places = Vec::from([first]);
                while let Some(next) = tokens.next_if(|t| place(t).is_some()) {
                    places.push(next);
                }
                words.order = Some(Order::Map(parse_map(&places)?));
            } else if let Some((_, apply)) = WORDS.iter().find(|(word, _)| *word == token) {
                apply(&mut words);
            } else if place(token).is_some() {
                return Err(WordError::StrayPlace(clip(token)));
            } else {
                return Err(unknown(token));
            }
        }
        Ok(words)
    }
}

fn place(token: &str) -> Option<Place> {
    if token.bytes().all(|b| b.is_ascii_digit()) {
        return token.parse().ok().map(Place::Index);
    }
    token.parse().ok().map(Place::Uuid)
}

fn parse_map(tokens: &[&str]) -> Result<Vec<Place>, WordError> {
    if tokens.len() > MAX_MAP {
        return Err(WordError::LongMap);
    }
    let mut places = Vec::new();
    for token in tokens {
        if token.is_empty() {
            return Err(WordError::EmptyMap);
        }
        let place = place(token).ok_or_else(|| unknown(token))?;
        if places.contains(&place) {
            return Err(WordError::RepeatedPlace(clip(token)));
        }
        places.push(place);
    }
    Ok(places)
}

fn unknown(token: &str) -> WordError {
    let word = clip(token);
    let (nearest, _) = WORDS
        .iter()
        .min_by_key(|(known, _)| strsim::damerau_levenshtein(known, &word))
        .expect("the table of words is not empty");
    WordError::Unknown { word, nearest }
}

/// What holds for a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub mode: Mode,
    pub order: Order,
    pub ids: Ids,
    pub print: Print,
    /// A doubt fails the task instead of leaving Slurm's values.
    pub strict: bool,
}

impl Policy {
    /// Joins what the places say, weakest first: site default, environment,
    /// option. A place that speaks without naming a mode still asks for
    /// alignment: it turns an absent or weaker `off` into `auto`.
    pub fn resolve<'a>(places: impl IntoIterator<Item = &'a Words>) -> Policy {
        let mut policy = Policy {
            mode: Mode::Off,
            order: Order::Pci,
            ids: Ids::Uuid,
            print: Print::Node,
            strict: false,
        };
        for words in places {
            policy.mode = match (words.mode, policy.mode) {
                (Some(mode), _) => mode,
                (None, Mode::Off) => Mode::Auto,
                (None, mode) => mode,
            };
            if let Some(order) = &words.order {
                policy.order = order.clone();
            }
            policy.ids = words.ids.unwrap_or(policy.ids);
            policy.print = words.print.unwrap_or(policy.print);
            policy.strict |= words.strict;
        }
        policy
    }

    /// Whether nobody asks for anything.
    pub fn is_off(&self) -> bool {
        self.mode == Mode::Off
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Words {
        text.parse().unwrap()
    }

    fn policy(places: &[&str]) -> Policy {
        let places: Vec<Words> = places.iter().map(|text| words(text)).collect();
        Policy::resolve(&places)
    }

    fn refusal(text: &str) -> String {
        text.parse::<Words>().unwrap_err().to_string()
    }

    #[test]
    fn later_words_win_and_option_beats_environment_beats_site() {
        assert_eq!(policy(&["all,single"]).mode, Mode::Single);
        let joined = policy(&["single,ids=index", "rotate", "print=task"]);
        assert_eq!(
            (joined.mode, joined.ids, joined.print),
            (Mode::Rotate, Ids::Index, Print::Task)
        );
    }

    #[test]
    fn a_bare_option_asks_for_auto_unless_the_site_names_a_mode() {
        assert!(policy(&[]).is_off());
        assert_eq!(policy(&[""]).mode, Mode::Auto);
        assert_eq!(policy(&["off,ids=index", ""]).mode, Mode::Auto);
        assert_eq!(policy(&["single", ""]).mode, Mode::Single);
        assert!(policy(&["single", "off"]).is_off());
    }

    #[test]
    fn an_unknown_word_names_the_nearest() {
        assert_eq!(
            refusal("singel"),
            "'singel' is not a word of gpu-align; did you mean 'single'?"
        );
        assert!(refusal("all,ids=uid").ends_with("did you mean 'ids=uuid'?"));
        assert!(refusal("order=near").ends_with("did you mean 'order=pci'?"));
        assert!(refusal("\x1b[31mred\n").starts_with("'?[31mred"));
    }

    #[test]
    fn a_map_takes_the_places_that_follow_it() {
        let Order::Map(map) = policy(&["single,map=2,0,1,ids=index"]).order else { panic!() };
        assert_eq!(map, [2, 0, 1].map(Place::Index));
        let uuid = "GPU-00000000-0004-4000-8000-000000000003";
        let Order::Map(map) = policy(&[&format!("map={uuid},1")]).order else { panic!() };
        assert_eq!(map, [Place::Uuid(uuid.parse().unwrap()), Place::Index(1)]);
        assert_eq!(words("map=1").order, Some(Order::Map(vec![Place::Index(1)])));
    }

    #[test]
    fn a_map_that_cannot_be_meant_is_refused() {
        assert!(refusal("map=").starts_with("map= lists no device"));
        assert!(refusal("map=0,0").starts_with("map= lists '0' twice"));
        assert!(refusal("all,3").starts_with("'3' stands alone"));
        assert!(refusal("map=x").contains("'x' is not a word"));
        assert!(refusal(&"a".repeat(5000)).starts_with("the words are longer"));
        assert!("map=99999999999999999999999".parse::<Words>().is_err());
    }
}

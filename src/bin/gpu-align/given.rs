//! Whether Slurm gives out cards on a node at all: gres.conf names them and
//! slurm.conf's `Gres=` counts them, and slurmd wants both.

use gpu_align::slurm::gres_conf::{AutoDetect, GresError};

use crate::numbering::Listed;

/// What the two files say together.
#[derive(Debug, PartialEq, Eq)]
pub enum Given {
    /// Cards, or gres.conf cannot be read.
    Cards,
    /// None, by both: the node's cards are not Slurm's business.
    Nothing,
    /// One speaks of cards and the other does not; a sentence.
    Torn(String),
}

/// `counted` is how many GPUs slurm.conf counts on the node; `None` where it does
/// not name the node, as with a dynamic one: there gres.conf alone decides.
pub fn given(node: &str, counted: Option<usize>, listed: &Listed) -> Given {
    match (listed, counted) {
        (Ok(None) | Err(GresError::NoGpus { .. }), None | Some(0)) => Given::Nothing,
        (Ok(None), Some(count)) => Given::Torn(format!(
            "slurm.conf counts {count} GPUs on node {node} and there is no gres.conf, so slurmctld \
             drains it; name each card's file in one, or write AutoDetect=nvml"
        )),
        (Err(why @ GresError::NoGpus { .. }), Some(_)) => Given::Torn(why.to_string()),
        // AutoDetect in a gres.conf for the whole cluster names no card.
        (Ok(Some(list)), Some(0)) if list.autodetect() != AutoDetect::Off => Given::Nothing,
        (Ok(Some(list)), Some(0)) => Given::Torn(format!(
            "{} names {} GPUs of node {node} and slurm.conf's Gres= counts none, so no job gets \
             one; add Gres=gpu:{1} to the node's line, or take the files out",
            list.source().display(),
            list.len()
        )),
        (Ok(Some(_)) | Err(_), _) => Given::Cards,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::inv8p;
    use gpu_align::slurm::gres_list::GresList;

    fn of(gres: &str, counted: Option<usize>) -> Given {
        let slurm = match counted {
            Some(count) => format!("NodeName=n1 Gres=gpu:{count}"),
            None => String::new(),
        };
        let stat = |file: &str| Some((195, file.trim_start_matches("/dev/nvidia").parse().ok()?));
        let list = GresList::from_text(gres, &slurm, "n1", &stat, &inv8p());
        given("n1", counted, &list.map(Some))
    }

    const FILES: &str = "NodeName=n1 Name=gpu File=/dev/nvidia[0-7]";
    const OTHERS: &str = "NodeName=n2 Name=gpu File=/dev/nvidia[0-7]";

    #[test]
    fn both_files_give_cards_or_neither_does() {
        assert_eq!(of(FILES, Some(8)), Given::Cards);
        assert_eq!(of("AutoDetect=nvml", Some(8)), Given::Cards);
        assert_eq!(of("Name=gpu oops", Some(0)), Given::Cards);
        assert_eq!(of(OTHERS, Some(0)), Given::Nothing);
        assert_eq!(of(OTHERS, None), Given::Nothing);
        assert_eq!(of("AutoDetect=nvml", Some(0)), Given::Nothing);
        assert_eq!(given("n1", Some(0), &Ok(None)), Given::Nothing);
    }

    #[test]
    fn a_dynamic_nodes_cards_are_gres_confs() {
        assert_eq!(of(FILES, None), Given::Cards);
    }

    #[test]
    fn one_file_without_the_other_is_said() {
        let says = |given| match given {
            Given::Torn(why) => why,
            other => panic!("{other:?}"),
        };
        assert!(says(of(OTHERS, Some(8))).contains("gives node n1 no GPUs, neither by File="));
        assert!(
            says(of(FILES, Some(0))).contains("names 8 GPUs of node n1 and slurm.conf's Gres=")
        );
        let none = says(given("n1", Some(8), &Ok(None)));
        assert!(none.starts_with("slurm.conf counts 8 GPUs on node n1 and there is no gres.conf"));
    }
}

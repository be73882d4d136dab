//! Words that were probably meant.

/// The word that was probably meant.
pub fn near_miss<'a>(word: &str, allowed: &[&'a str]) -> Option<&'a str> {
    let plain = |word: &str| word.to_lowercase().replace('-', "_");
    let given = plain(word);
    allowed
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(&given, &plain(candidate)), *candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

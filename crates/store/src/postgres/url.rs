//! What a URL says about the database.

/// The URL without our own parameter, and whether it was there.
pub(super) fn without_pooler(url: &str) -> (String, bool) {
    let Some((base, parameters)) = url.split_once('?') else { return (url.to_owned(), false) };
    let (ours, others): (Vec<&str>, Vec<&str>) =
        parameters.split('&').partition(|parameter| *parameter == "pooler=transaction");
    let url = match others.join("&") {
        rest if rest.is_empty() => base.to_owned(),
        rest => format!("{base}?{rest}"),
    };
    (url, !ours.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pooler_is_our_own_parameter() {
        let plain = "postgres://a@b/c?connect_timeout=3";
        assert_eq!(without_pooler(plain), (plain.into(), false));
        let pooled = "postgres://a@b/c?pooler=transaction&connect_timeout=3";
        assert_eq!(without_pooler(pooled), (plain.into(), true));
        let only = "postgres://a@b/c?pooler=transaction";
        assert_eq!(without_pooler(only), ("postgres://a@b/c".into(), true));
    }
}

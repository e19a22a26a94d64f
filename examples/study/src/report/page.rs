//! The page: one HTML file that needs nothing from anywhere.

use std::fmt::Write;

use super::chart::{self, COLOURS, NARROW, WIDE};
use super::figures::Figure;
use crate::error::Result;

/// The whole page. `facts` stand on top, `notes` at the end.
pub fn page(facts: &[(String, String)], figures: &[Figure], notes: &[String]) -> Result<String> {
    let mut body = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(body, "<h1>Pool and threads</h1>");
    let _ = writeln!(body, "<dl class=\"facts\">");
    for (name, value) in facts {
        let (name, value) = (escaped(name), escaped(value));
        let _ = writeln!(body, "<div><dt>{name}</dt><dd>{value}</dd></div>");
    }
    let _ = writeln!(body, "</dl>\n<nav>");
    for figure in figures {
        let (id, title) = (figure.id, escaped(&figure.title));
        let _ = writeln!(body, "<a href=\"#{id}\">{title}</a>");
    }
    let _ = writeln!(body, "</nav>");
    for figure in figures {
        section(&mut body, figure)?;
    }
    for note in notes {
        let _ = writeln!(body, "<p class=\"note\">{}</p>", escaped(note));
    }
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Pool and threads</title>\n<style>\n{}{STYLE}</style>\n</head>\n<body>\n<main>\n\
         {body}</main>\n</body>\n</html>\n",
        chart::colours()
    ))
}

/// A figure alone, for other pages: it brings its own colours.
pub fn picture(figure: &Figure) -> Result<String> {
    let svg = chart::draw(&figure.chart, WIDE)?;
    let head = svg.find('>').map_or(0, |at| at + 1);
    let style = format!("\n<style>{}</style>", chart::colours());
    Ok(format!("{}{style}{}", &svg[..head], &svg[head..]))
}

fn section(body: &mut String, figure: &Figure) -> Result<()> {
    let (id, title) = (figure.id, escaped(&figure.title));
    let _ = writeln!(body, "<section id=\"{id}\">\n<h2>{title}</h2>\n<figure>");
    for (class, size) in [("wide", WIDE), ("narrow", NARROW)] {
        let svg = chart::draw(&figure.chart, size)?;
        // Screen readers have the sentence and the table.
        let labelled = format!("<svg class=\"{class}\" role=\"img\" aria-label=\"{title}\"");
        body.push_str(&svg.replacen("<svg", &labelled, 1));
    }
    let sentence = escaped(&figure.sentence);
    let _ = writeln!(body, "<figcaption>{sentence}</figcaption>\n</figure>");
    let (x, y) = (escaped(&figure.chart.x), escaped(&figure.chart.y));
    let _ = writeln!(
        body,
        "<details><summary>Numbers</summary><div class=\"scroll\"><table>\n\
         <caption>{y} by {x}</caption>"
    );
    for series in &figure.chart.series {
        let colour = series.colour % COLOURS.len();
        let name = escaped(&series.name);
        let _ = write!(body, "<tr><th style=\"color:var(--c{colour})\">{name}</th>");
        for (x, y) in &series.points {
            let (x, y) = (chart::label(*x), chart::label(three_digits(*y)));
            let _ = write!(body, "<td><small>{x}</small><br>{y}</td>");
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</table></div></details>\n</section>\n");
    Ok(())
}

fn three_digits(value: f64) -> f64 {
    if value == 0.0 {
        return 0.0;
    }
    let unit = 10f64.powf(value.abs().log10().floor() - 2.0);
    (value / unit).round() * unit
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

const STYLE: &str = "\
body{margin:0;background:Canvas;color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:900px;margin:0 auto;padding:16px}
h1{font-size:1.6rem}
h2{font-size:1.2rem;margin:2.5rem 0 .5rem}
figure{margin:0}
svg{width:100%;height:auto;display:block}
svg text{font-family:system-ui,sans-serif}
svg.narrow{display:none}
figcaption{margin:.5rem 0}
nav{display:flex;flex-wrap:wrap;gap:.25rem 1rem}
a{color:var(--c0)}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr))}
.facts{gap:.25rem 1rem}
.facts div{display:flex;gap:.5rem}
.facts dt{flex:0 0 6rem;opacity:.75}
.facts dd{margin:0;overflow-wrap:anywhere;min-width:0}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
caption{text-align:left}
th{text-align:left;white-space:nowrap;padding:.25rem .75rem .25rem 0}
td{text-align:right;padding:.25rem .5rem;border-bottom:1px solid var(--grid)}
small{opacity:.75}
.note{border-top:1px solid var(--grid);padding-top:.5rem}
@media (max-width:640px){svg.wide{display:none}svg.narrow{display:block}}
";

#[cfg(test)]
mod tests {
    use super::super::chart::tests::chart;
    use super::*;

    fn figure() -> Figure {
        Figure {
            id: "qps",
            title: "Statements & more".into(),
            sentence: "The pool <wins> nothing.".into(),
            chart: chart(&[(16.0, 1e5), (4096.0, 2e5)]),
        }
    }

    #[test]
    fn the_page_needs_nothing_from_anywhere() {
        let facts = [("command".to_string(), "study report <x>".to_string())];
        let page = page(&facts, &[figure()], &["a note".into()]).unwrap();
        for part in ["src=", "@import", "url(", "<script", "<link"] {
            assert!(!page.contains(part), "{part}");
        }
        // The name space of SVG is no address.
        let addresses = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!addresses.contains("http"), "{addresses}");
    }

    #[test]
    fn a_figure_has_a_picture_of_each_width_a_sentence_and_its_numbers() {
        let page = page(&[], &[figure()], &[]).unwrap();
        for part in [
            "<svg class=\"wide\"",
            "<svg class=\"narrow\"",
            "<figcaption>The pool &lt;wins&gt; nothing.</figcaption>",
            "<h2>Statements &amp; more</h2>",
            "<small>4096</small><br>200k",
            "prefers-color-scheme:dark",
        ] {
            assert!(page.contains(part), "no {part} in {page}");
        }
    }

    #[test]
    fn a_picture_alone_brings_its_colours() {
        let svg = picture(&figure()).unwrap();
        assert!(
            svg.starts_with("<svg") && svg.contains("--c1:#c2410c"),
            "{svg}"
        );
    }
}

//! A line chart as SVG, in colours that the page around it names: the same picture by day and by
//! night, drawn once for a wide screen and once for a narrow one.

use std::fmt::Write;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::prelude::*;

use crate::error::{Error, Result};

/// A line in a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// What it is called in the legend.
    pub name: String,
    /// Which of [`COLOURS`]; the same thing has the same colour in every figure.
    pub colour: usize,
    /// Dashes: somebody else's figures, or the other socket.
    pub dashed: bool,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// How an axis is divided.
#[derive(Debug, Clone, PartialEq)]
pub enum Scale {
    /// From 0 up.
    Linear,
    /// By factors of 2, for numbers of clients.
    Doubling,
    /// By factors of 10.
    Decades,
    /// One place for each of these numbers, evenly.
    Places(Vec<f64>),
}

/// What is drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// What is along the bottom, with its unit.
    pub x: String,
    /// What is up the side, with its unit.
    pub y: String,
    /// How the bottom is divided.
    pub x_scale: Scale,
    /// How the side is divided.
    pub y_scale: Scale,
    /// The lines.
    pub series: Vec<Series>,
}

/// A size in pixels, and how many names a line of its legend has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    width: u32,
    plot: u32,
    names: usize,
}

/// For a desk.
pub const WIDE: Size = Size {
    width: 860,
    plot: 380,
    names: 3,
};

/// For a phone.
pub const NARROW: Size = Size {
    width: 360,
    plot: 300,
    names: 1,
};

/// The colours of lines by day and by night.
pub const COLOURS: [(&str, &str); 8] = [
    ("#0b62c4", "#62aaff"),
    ("#c2410c", "#ff9d5c"),
    ("#15803d", "#5fd38a"),
    ("#7c3aed", "#b99bff"),
    ("#6b7280", "#b3bac6"),
    ("#b0126b", "#ff86c3"),
    ("#0e7490", "#5ed0e6"),
    ("#854d0e", "#e2b65c"),
];

/// Ink and grid by day and by night.
const INKS: [(&str, &str, &str); 2] = [
    ("ink", "#1c2128", "#e6e9ee"),
    ("grid", "#d9dde3", "#3a424d"),
];

// What the drawing has in place of colours, to be replaced by their names.
const INK: RGBColor = RGBColor(1, 2, 1);
const GRID: RGBColor = RGBColor(1, 2, 2);

fn placeholder(colour: usize) -> RGBColor {
    RGBColor(1, 3, (colour % COLOURS.len()) as u8)
}

/// The style sheet that gives the colours their values.
pub fn colours() -> String {
    let rules = |pick: fn((&'static str, &'static str)) -> &'static str| {
        let mut text = String::new();
        for (name, day, night) in INKS {
            // Writing to a String cannot fail.
            let _ = write!(text, "--{name}:{};", pick((day, night)));
        }
        for (at, pair) in COLOURS.into_iter().enumerate() {
            let _ = write!(text, "--c{at}:{};", pick(pair));
        }
        text
    };
    let (day, night) = (rules(|pair| pair.0), rules(|pair| pair.1));
    format!(
        ":root{{color-scheme:light dark;{day}}}\n\
         @media (prefers-color-scheme:dark){{:root{{{night}}}}}\n"
    )
}

const LEGEND_LINE: u32 = 20;

/// Draws it.
///
/// # Errors
/// If it has no point, or a number in it is none.
pub fn draw(chart: &Chart, size: Size) -> Result<String> {
    let (x, y) = (
        Axis::of(chart, &chart.x_scale, |p| p.0)?,
        Axis::of(chart, &chart.y_scale, |p| p.1)?,
    );
    let legend = LEGEND_LINE * chart.series.len().div_ceil(size.names) as u32 + 8;
    let mut svg = String::new();
    draw_into(&mut svg, chart, size, legend, (&x, &y))
        .map_err(|error| Error::run(format!("cannot draw '{}': {error}", chart.y)))?;
    Ok(named(&svg))
}

/// Colours by name, and a size that follows the page.
fn named(svg: &str) -> String {
    let mut text = svg.replace("#010201", "var(--ink)");
    text = text.replace("#010202", "var(--grid)");
    for colour in 0..COLOURS.len() {
        text = text.replace(&format!("#01030{colour}"), &format!("var(--c{colour})"));
    }
    // The view box is there too.
    let from = text.find("width=\"").unwrap_or(0);
    let to = text.find("viewBox").unwrap_or(from);
    text.replace_range(from..to, "");
    text
}

fn draw_into(
    svg: &mut String,
    chart: &Chart,
    size: Size,
    legend: u32,
    (x, y): (&Axis, &Axis),
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, (size.width, size.plot + legend)).into_drawing_area();
    let (top, plot) = root.split_vertically(legend);
    for (at, series) in chart.series.iter().enumerate() {
        let column = size.width as i32 / size.names as i32;
        let (left, middle) = (
            8 + column * (at % size.names) as i32,
            LEGEND_LINE as i32 * (at / size.names) as i32 + 12,
        );
        let style = placeholder(series.colour).stroke_width(3);
        let pieces: &[(i32, i32)] = if series.dashed {
            &[(0, 6), (10, 16), (20, 26)]
        } else {
            &[(0, 26)]
        };
        for (from, to) in pieces {
            let ends = vec![(left + from, middle), (left + to, middle)];
            top.draw(&PathElement::new(ends, style))?;
        }
        let place = (left + 34, middle - 8);
        top.draw(&Text::new(series.name.clone(), place, text_style(13)))?;
    }
    let mut context = ChartBuilder::on(&plot)
        .margin(8)
        .margin_right(20)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(x.clone(), y.clone())?;
    context
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(GRID)
        .label_style(text_style(12))
        .axis_desc_style(text_style(13))
        .x_desc(&chart.x)
        .y_desc(&chart.y)
        .draw()?;
    for series in &chart.series {
        let points = || {
            series
                .points
                .iter()
                .map(|(px, py)| (x.place(*px), y.place(*py)))
        };
        let style = placeholder(series.colour).stroke_width(2);
        if series.dashed {
            context.draw_series(DashedLineSeries::new(points(), 6, 4, style))?;
        } else {
            context.draw_series(LineSeries::new(points(), style))?;
        }
        // A line of one point is not to be seen.
        if series.points.len() < 20 {
            let dot = |at| Circle::new(at, 3, placeholder(series.colour).filled());
            context.draw_series(points().map(dot))?;
        }
    }
    root.present()?;
    Ok(())
}

fn text_style(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

/// A scale with its ends; places are what the drawing knows.
#[derive(Clone)]
struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
    ticks: Vec<f64>,
}

impl Axis {
    fn of(chart: &Chart, scale: &Scale, pick: fn(&(f64, f64)) -> f64) -> Result<Axis> {
        let values: Vec<f64> = chart
            .series
            .iter()
            .flat_map(|s| s.points.iter().map(pick))
            .collect();
        if values.is_empty() || values.iter().any(|v| !v.is_finite()) {
            return Err(Error::run(format!(
                "the figure of '{}' has no data",
                chart.y
            )));
        }
        let mut axis = Axis {
            scale: scale.clone(),
            from: 0.0,
            to: 0.0,
            ticks: Vec::new(),
        };
        let places = values.iter().map(|v| axis.place(*v));
        let (least, most) = places.fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)));
        let whole = |from: f64, to: f64, step: f64| -> Vec<f64> {
            let steps = ((to - from) / step).round() as usize;
            (0..=steps).map(|n| from + n as f64 * step).collect()
        };
        (axis.from, axis.to, axis.ticks) = match scale {
            Scale::Linear => {
                let step = nice(most.max(1e-9) / 5.0);
                let to = (most / step).ceil().max(1.0) * step;
                (0.0, to, whole(0.0, to, step))
            }
            Scale::Doubling => {
                let (from, to) = (least.floor(), most.ceil().max(least.floor() + 1.0));
                let step = ((to - from) / 6.0).ceil().max(1.0);
                let last = from + ((to - from) / step).floor() * step;
                (from, to, whole(from, last, step))
            }
            Scale::Decades => {
                let (from, to) = (least.floor(), most.ceil().max(least.floor() + 1.0));
                (from, to, whole(from, to, 1.0))
            }
            Scale::Places(all) => {
                let last = (all.len().max(2) - 1) as f64;
                (0.0, last, whole(0.0, (all.len() - 1) as f64, 1.0))
            }
        };
        Ok(axis)
    }

    fn place(&self, value: f64) -> f64 {
        // A logarithm has no place for what is not above 0.
        match &self.scale {
            Scale::Linear => value,
            Scale::Doubling => value.max(1e-6).log2(),
            Scale::Decades => value.max(1e-6).log10(),
            Scale::Places(all) => all.iter().position(|one| *one == value).unwrap_or(0) as f64,
        }
    }

    fn value(&self, place: f64) -> f64 {
        match &self.scale {
            Scale::Linear => place,
            Scale::Doubling => place.exp2(),
            Scale::Decades => 10f64.powf(place),
            Scale::Places(all) => all.get(place.round() as usize).copied().unwrap_or(0.0),
        }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, (low, high): (i32, i32)) -> i32 {
        let share = (place - self.from) / (self.to - self.from);
        low + (f64::from(high - low) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, place: &f64) -> String {
        label(self.value(*place))
    }
}

/// 1, 2 or 5 times a power of ten, not below `step`.
fn nice(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let of = [1.0, 2.0, 5.0].map(|n| n * power);
    of.into_iter()
        .find(|n| *n >= step * 0.999)
        .unwrap_or(10.0 * power)
}

/// A number of an axis: few digits.
pub(super) fn label(value: f64) -> String {
    let digits = |v: f64| {
        let text = format!("{v:.3}");
        text.trim_end_matches('0').trim_end_matches('.').to_string()
    };
    match value {
        v if v >= 1e6 => digits(v / 1e6) + "M",
        v if v >= 1e4 => digits(v / 1e3) + "k",
        v if v >= 1e-3 || v == 0.0 => digits(v),
        v => format!("{v:.0e}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::report) fn chart(points: &[(f64, f64)]) -> Chart {
        Chart {
            x: "clients".into(),
            y: "statements/s".into(),
            x_scale: Scale::Doubling,
            y_scale: Scale::Linear,
            series: vec![Series {
                name: "pool <&>".into(),
                colour: 1,
                dashed: false,
                points: points.to_vec(),
            }],
        }
    }

    #[test]
    fn a_chart_names_its_colours_and_follows_the_page() {
        for size in [WIDE, NARROW] {
            let svg = draw(&chart(&[(16.0, 1e5), (4096.0, 2e5)]), size).unwrap();
            assert!(
                svg.contains("var(--c1)") && svg.contains("var(--ink)"),
                "{svg}"
            );
            assert!(!svg.contains("#01"), "no placeholder is left: {svg}");
            assert!(!svg[..svg.find('>').unwrap()].contains("width="), "{svg}");
            assert!(svg.contains("<polyline"), "{svg}");
            assert!(svg.contains("pool &lt;&amp;&gt;"), "{svg}");
            for tick in ["16", "1024", "100k", "200k"] {
                assert!(svg.contains(&format!("\n{tick}\n")), "no {tick} in {svg}");
            }
        }
    }

    #[test]
    fn one_point_is_to_be_seen() {
        let svg = draw(&chart(&[(4.0, 10.0)]), WIDE).unwrap();
        assert!(svg.contains("<circle"), "{svg}");
    }

    #[test]
    fn a_chart_without_data_is_an_error() {
        assert!(draw(&chart(&[]), WIDE).is_err());
        assert!(draw(&chart(&[(1.0, f64::NAN)]), WIDE).is_err());
    }

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!([0.7, 1.0, 130.0, 4e4].map(nice), [1.0, 1.0, 200.0, 5e4]);
        let labels = [0.0, 0.02, 512.0, 2.5e4, 1.5e6].map(label);
        assert_eq!(labels, ["0", "0.02", "512", "25k", "1.5M"]);
    }
}

//! `-v`: what the library tells through `tracing`, as lines on stderr.

use crate::output::{Event, Output, words};
use fencelock::name::printable;
use std::fmt::{Debug, Write as _};
use tracing::field::{Field, Visit};
use tracing::{Level, Metadata, Subscriber, span};

/// Listens from now on: `-v` to what a user may want to know, `-vv` to everything.
pub(crate) fn listen(verbose: u8, output: Output) {
    let most = match verbose {
        0 => return,
        1 => Level::DEBUG,
        _ => Level::TRACE,
    };
    // Only fails where somebody listens already.
    let _ = tracing::subscriber::set_global_default(Lines { most, output });
}

struct Lines {
    most: Level,
    output: Output,
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.most && (metadata.target().starts_with("fencelock") || self.most == Level::TRACE)
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let message = printable(&(text.message + &text.fields));
        let level = event.metadata().level().as_str();
        if self.output.json {
            self.output.event_on_stderr(&Event::Log { level: &level.to_lowercase(), message: &message });
        } else {
            words(&format!("{level:5} {message}\n"));
        }
    }

    // Spans are not shown.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

import type { Connection } from "../../site/types.js";
import { brief, sentence } from "../format.js";
import type { Page } from "../page.js";
import { Icon } from "../parts/icon.js";
import { nextTheme, theme } from "./theme.js";

const WORDS: Readonly<Record<Connection["status"], string>> = {
  connecting: "connecting",
  connected: "connected",
  lost: "connection lost",
  refused: "refused",
};

/** Name, connection, and the buttons that work in every view. */
export function Header({ page }: { page: Page }) {
  return (
    <div class="top">
      <h1>
        <span class="mark" aria-hidden="true">
          <Icon name="brand" />
        </span>
        <span class="word">mqinfer</span>
      </h1>
      <ConnectionState connection={page.site.connection.value} />
      <Controls page={page} />
    </div>
  );
}

function ConnectionState({ connection }: { connection: Connection }) {
  return (
    <p class={`connection ${connection.status}`} role="status" data-testid="connection" data-status={connection.status}>
      <b>{WORDS[connection.status]}</b>
    </p>
  );
}

/** Why nothing comes, above what was shown last. */
export function Banner({ page }: { page: Page }) {
  const { status, reason, needsLogin } = page.site.connection.value;
  if (status === "connected" || !reason || needsLogin) return null;
  return (
    <p class="banner" role="alert">
      {sentence(brief(reason, 300))}
      {status === "refused" ? "" : " The page tries again by itself, and shows what it had."}
    </p>
  );
}

function Controls({ page }: { page: Page }) {
  const help = () => {
    page.isHelpOpen.value = true;
  };
  return (
    <div class="controls">
      <PauseAndStep page={page} />
      <button
        type="button"
        data-testid="theme"
        class="quiet"
        aria-label={`Colours: ${theme.value}`}
        title={`Colours: ${theme.value}`}
        onClick={nextTheme}
      >
        <Icon name={theme.value} />
      </button>
      <button type="button" class="quiet" data-testid="help" aria-label="Help" title="Keys (?)" onClick={help}>
        <Icon name="help" />
      </button>
    </div>
  );
}

function PauseAndStep({ page: { site } }: { page: Page }) {
  const isPaused = site.isPaused.value;
  return (
    <>
      <button
        type="button"
        data-testid="pause"
        class={isPaused ? "paused" : ""}
        aria-pressed={isPaused}
        title={isPaused ? "Go on (space)" : "Pause (space)"}
        onClick={() => site.setPaused(!isPaused)}
      >
        <Icon name={isPaused ? "play" : "pause"} />
        <span class="word">{isPaused ? "Paused" : "Pause"}</span>
      </button>
      <button type="button" data-testid="step" disabled={!isPaused} title="Next frame (.)" onClick={() => site.step()}>
        <Icon name="step" />
        <span class="word">Step</span>
      </button>
    </>
  );
}

import type { ComponentChildren } from "preact";

/** What stands where there is nothing yet: what is missing, and the command that brings it. */
export function Empty(props: { title: string; command?: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{props.title}</h2>
      {props.children && <p>{props.children}</p>}
      {props.command && <code>{props.command}</code>}
    </div>
  );
}

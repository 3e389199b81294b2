// Runs axe-core, which is in the page already, and returns what it calls serious or critical.
async () => {
  const found = await window.axe.run(document, { resultTypes: ["violations"] });
  const describe = ({ impact, id, help, nodes }) =>
    `${impact} ${id}: ${help}: ${nodes.slice(0, 3).map((node) => node.html).join(" ")}`;
  return found.violations.filter(({ impact }) => impact === "serious" || impact === "critical").map(describe);
};

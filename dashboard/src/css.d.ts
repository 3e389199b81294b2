// Style sheets are imported for the build to collect them; they have no value.
declare module "*.css";

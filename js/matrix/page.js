import { openPage } from "../core/page.js";
import mount from "./matrix.js";

openPage(mount);

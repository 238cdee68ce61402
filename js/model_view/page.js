import { openPage } from "../core/page.js";
import mount from "./model_view.js";

openPage(mount);
